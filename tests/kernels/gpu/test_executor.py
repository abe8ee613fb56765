"""Every way to run rows on the GPU executor gives the logits of the reference."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pytest

from localllm.gguf_io import QuantType, Tensor, dequantize, open_gguf, quantize
from localllm.kernels.errors import ExecutionError, OutOfMemoryError, UnsupportedModelError
from localllm.kernels.executor import ExecutorOptions
from localllm.kernels.kv_layout import PAGE_SIZE
from localllm.kernels.reference import ReferenceExecutor
from localllm.kernels.single_sequence import simple_step
from localllm.kernels.spec import FeedForward, Linear
from localllm.kernels.step import GroupTables, Output, PageMove, Step, TreeMask
from localllm.models import load_spec

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

if TYPE_CHECKING:
    from localllm.kernels.executor import Executor
    from localllm.kernels.gpu.executor import GpuExecutor
    from localllm.kernels.kv_layout import KVLayout
    from localllm.kernels.spec import ModelSpec

_DATA = Path(__file__).resolve().parents[2] / "data" / "models"
_TOKENS = np.random.default_rng(7).integers(3, 60, 80).astype(np.int32)


def _spec(name: str) -> ModelSpec:
    return load_spec(open_gguf(_DATA / f"{name}.gguf"))


def _executor(spec: ModelSpec, **given: int) -> GpuExecutor:
    from localllm.kernels.gpu.executor import GpuExecutor, GpuOptions

    options = ExecutorOptions(max_rows=given.pop("max_rows", 32), vram=given.pop("vram", None))
    return GpuExecutor(spec, options, GpuOptions(arithmetic="float32", short=torch.float32))


@pytest.fixture(scope="module")
def llama() -> ModelSpec:
    return _spec("llama_gqa_tied_f16")


@pytest.fixture(scope="module")
def windowed() -> ModelSpec:
    """One layer with a window of 8 and one without; soft caps."""
    return _spec("gemma2")


def _same(executors: tuple[Executor, Executor], steps: list[Step], atol: float = 1e-4) -> None:
    for step in steps:
        found, expected = (executor.forward(step).copy() for executor in executors)
        np.testing.assert_allclose(found, expected, rtol=0, atol=atol)


def _batch(
    layout: KVLayout, tokens: list[npt.NDArray[np.int32]], starts: list[int], pages: npt.NDArray[np.int32]
) -> Step:
    """Rows of several sequences, whose pages are `pages[sequence]`."""
    lengths = [len(part) for part in tokens]
    positions = np.concatenate([np.arange(n) + start for n, start in zip(lengths, starts, strict=True)])
    sequences = np.repeat(np.arange(len(tokens)), lengths).astype(np.int32)
    slots = pages[sequences, positions // PAGE_SIZE].astype(np.int64) * PAGE_SIZE + positions % PAGE_SIZE
    nothing = np.zeros(len(tokens), np.int32)
    tables = GroupTables(pages, nothing, nothing.astype(np.int64), slots, positions.astype(np.int32))
    rows = np.arange(len(positions), dtype=np.int32)
    return Step(np.concatenate(tokens), positions, sequences, (tables,) * len(layout.groups), rows)


def _filled(both: tuple[GpuExecutor, ReferenceExecutor], pages: int) -> None:
    """Allocate `pages` and write the same numbers to all of them, in the layout of each: by head, or by slot."""
    gpu, reference = both
    layout, groups = gpu.layout, len(gpu.layout.groups)
    rng = np.random.default_rng(3)
    for executor in both:
        executor.allocate_kv((pages,) * groups, "f32", (0,) * groups)
    for group in range(groups):
        shapes = [layout.layers[layer] for layer in layout.groups[group].layers]
        widths = [(shape.heads, width) for shape in shapes for width in (shape.key_dim, shape.value_dim)]
        for page in range(pages):
            parts = [rng.standard_normal((PAGE_SIZE, *shape), np.float32) * np.float32(0.7) for shape in widths]
            reference.write_page(group, page, b"".join(part.tobytes() for part in parts))
            gpu.write_page(group, page, b"".join(part.transpose(1, 0, 2).tobytes() for part in parts))


def test_prefill_beside_decodes_then_batched_decode_in_scattered_pages(windowed: ModelSpec) -> None:
    both = _executor(windowed), ReferenceExecutor(windowed)
    pages = np.array([[6, 1], [3, 5], [0, 7]], np.int32)
    _filled(both, 8)
    layout = both[0].layout
    steps = [_batch(layout, [_TOKENS[:3], _TOKENS[20:21], _TOKENS[30:31]], [15, 19, 0], pages)]
    steps.append(_batch(layout, [_TOKENS[9:10], _TOKENS[21:22], _TOKENS[34:35]], [18, 20, 1], pages))
    _same(both, steps)


@pytest.mark.parametrize("rows", [1, 5])
def test_pages_that_left_the_native_window_can_be_dropped(windowed: ModelSpec, rows: int) -> None:
    both = _executor(windowed), ReferenceExecutor(windowed)
    _filled(both, 5)
    local = next(i for i, group in enumerate(both[0].layout.groups) if group.window is not None)
    step = simple_step(both[0].layout, _TOKENS[48 : 48 + rows], 48)
    kept = replace(
        step.groups[local],
        pages=np.ascontiguousarray(step.groups[local].pages[:, 2:]),
        window_start=np.array([32], np.int64),
        row_index=step.groups[local].row_index - 32,
    )
    groups = tuple(kept if i == local else group for i, group in enumerate(step.groups))
    _same(both, [replace(step, groups=groups)])


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("name", ["llama_gqa_tied_f16", "qwen3"])
def test_sinks_are_seen_near_however_far_the_window_is(name: str, rows: int) -> None:
    spec = _spec(name)
    both = _executor(spec), ReferenceExecutor(spec)
    gap = 100_000
    _filled(both, 4)
    near = simple_step(both[0].layout, _TOKENS[:rows], PAGE_SIZE + 3)
    tables = replace(
        near.groups[0], sink_tokens=np.array([PAGE_SIZE], np.int32), window_start=np.array([PAGE_SIZE + gap])
    )
    _same(both, [replace(near, positions=near.positions + gap, groups=(tables,), sink_positions=near.positions)])


@pytest.mark.parametrize("rows", [1, 5])
def test_gate_and_up_of_different_types_are_multiplied_one_by_one(llama: ModelSpec, rows: int) -> None:
    layers = []
    for layer in llama.layers:
        block = layer.feed_forward
        assert isinstance(block, FeedForward)
        up = block.up.weight
        data = quantize(dequantize(up), QuantType.Q8_0).reshape(up.rows, -1)
        linear = Linear(Tensor("up", QuantType.Q8_0, up.shape, data))
        layers.append(replace(layer, feed_forward=replace(block, up=linear)))
    spec = replace(llama, layers=tuple(layers))
    both = _executor(spec), ReferenceExecutor(spec)
    _filled(both, 2)
    _same(both, [simple_step(both[0].layout, _TOKENS[:rows], 3)])


def test_a_tree_of_guesses(llama: ModelSpec) -> None:
    both = _executor(llama), ReferenceExecutor(llama)
    _filled(both, 3)
    ancestors = np.zeros((4, 4), np.bool_)
    for row, path in enumerate([[0], [0, 1], [0, 2], [0, 2, 3]]):
        ancestors[row, path] = True
    step = simple_step(both[0].layout, np.array([50, 40, 30, 20], np.int32), 21)
    _same(both, [replace(step, positions=21 + np.array([0, 1, 1, 2]), tree=TreeMask(ancestors))])


@pytest.mark.parametrize("rows", [1, 2])
def test_a_long_context_is_split_over_programs(llama: ModelSpec, rows: int) -> None:
    """Enough pages that the keys are split: the parts are merged by whichever program comes last."""
    both = _executor(llama), ReferenceExecutor(llama)
    _filled(both, 34)
    pages = np.arange(34, dtype=np.int32)[None, :]
    _same(both, [_batch(both[0].layout, [_TOKENS[:rows]], [530], pages)] * 2)


@pytest.mark.parametrize("rows", [3, 5, 8] if torch.cuda.is_available() else [3])
def test_a_few_rows_read_packed_weights_on_tensor_cores(rows: int) -> None:
    from localllm.kernels.gpu.executor import GpuExecutor, GpuOptions

    spec = _spec("mix_q4_k_m_like")
    spec = replace(spec, layers=spec.layers[:1])
    options = GpuOptions(arithmetic="int8", short=torch.float16)
    both = GpuExecutor(spec, ExecutorOptions(max_rows=16), options), ReferenceExecutor(spec)
    _filled(both, 1)
    step = replace(simple_step(both[0].layout, np.arange(3, 3 + rows), 3), output=Output.HIDDEN)
    found, exact = (executor.forward(step).copy() for executor in both)
    assert np.sqrt(((found - exact) ** 2).mean()) < 0.01 * exact.std()


def test_moved_and_saved_pages_hold_the_same_keys(llama: ModelSpec) -> None:
    executor = _executor(llama)
    executor.allocate_kv((6,), "f16")
    executor.forward(simple_step(executor.layout, _TOKENS[:18]))
    step = simple_step(executor.layout, _TOKENS[18:19], 18)
    saved = executor.read_page(0, 0), executor.read_page(0, 1)
    expected = executor.forward(step).copy()
    executor.write_page(0, 5, saved[0])
    executor.write_page(0, 1, saved[1])
    tables = replace(step.groups[0], pages=np.array([[5, 3]], np.int32), slots=step.groups[0].slots + 2 * PAGE_SIZE)
    moved = executor.forward(replace(step, groups=(tables,), moves=(PageMove(0, 1, 3),)))
    np.testing.assert_array_equal(moved, expected)
    with pytest.raises(ExecutionError, match="a saved page has 3 bytes"):
        executor.write_page(0, 0, b"abc")


def test_chosen_rows_hidden_vectors_and_best_ids(llama: ModelSpec) -> None:
    both = _executor(llama), ReferenceExecutor(llama)
    for executor in both:
        executor.allocate_kv((1,), "f32", (0,))
    rows = np.array([1, 4], np.int32)
    step = simple_step(both[0].layout, _TOKENS[:5], output_rows=rows)
    _same(both, [step, replace(step, output=Output.HIDDEN)])
    logits = both[1].forward(step)
    ids, values = both[0].best(step, 3)
    np.testing.assert_array_equal(ids, np.argsort(-logits, axis=1, kind="stable")[:, :3])
    np.testing.assert_allclose(values, np.sort(logits, axis=1)[:, ::-1][:, :3], rtol=0, atol=1e-4)
    empty = both[0].forward(replace(step, output_rows=rows[:0]))
    assert empty.shape == (0, llama.vocabulary_size)


def test_memory_is_what_was_planned(llama: ModelSpec) -> None:
    executor = _executor(llama)
    planned = executor.planned
    assert executor.memory().weights == {"cuda": planned.weights}
    assert executor.memory().workspace == {"cuda": planned.workspace}
    executor.allocate_kv((3,), "f16")
    assert executor.memory().kv == {"cuda": 3 * PAGE_SIZE * executor.layout.values_per_token(0) * 2}
    with pytest.raises(OutOfMemoryError, match=r"weights .* workspace .* budget"):
        _executor(llama, vram=planned.total - 1)
    small = _executor(llama, vram=planned.total + 1000)
    with pytest.raises(OutOfMemoryError, match="KV cache"):
        small.allocate_kv((300,), "f16")


def test_what_cannot_be_run_is_said(llama: ModelSpec) -> None:
    executor = _executor(llama, max_rows=4)
    with pytest.raises(ExecutionError, match="allocate_kv"):
        executor.forward(simple_step(executor.layout, [1]))
    with pytest.raises(UnsupportedModelError, match="q2"):
        executor.allocate_kv((1,), "q2")
    executor.allocate_kv((1,), "f32")
    with pytest.raises(ExecutionError, match="5 rows"):
        executor.forward(simple_step(executor.layout, [1] * 5))
    assert "float32 products" in executor.describe()
    executor.close()
    executor.close()

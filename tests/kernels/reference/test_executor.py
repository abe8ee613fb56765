"""Paging, sequences, windows, sinks and trees: every way to run the same rows gives the same logits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localllm.gguf_io import open_gguf
from localllm.kernels.errors import ExecutionError
from localllm.kernels.executor import ExecutorOptions
from localllm.kernels.kv_layout import PAGE_SIZE
from localllm.kernels.reference import ReferenceExecutor
from localllm.kernels.single_sequence import logits_of, pages_for, simple_step
from localllm.kernels.spec import ModelSpec
from localllm.kernels.step import GroupTables, Output, PageMove, Step, TreeMask
from localllm.models import load_spec

_DATA = Path(__file__).resolve().parents[2] / "data" / "models"
_TOKENS = np.random.default_rng(7).integers(3, 64, 80).astype(np.int32)

Logits = npt.NDArray[np.float32]


def _spec(name: str) -> ModelSpec:
    return load_spec(open_gguf(_DATA / f"{name}.gguf"))


@pytest.fixture(scope="module")
def llama() -> ModelSpec:
    return _spec("llama_gqa_tied_f16")


@pytest.fixture(scope="module")
def windowed() -> ModelSpec:
    """Five layers with a window of 8 and one without."""
    return _spec("gemma3")


def _close(actual: Logits, expected: Logits) -> None:
    np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-5)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, 23), min_size=1, max_size=8))
def test_any_chunks_give_the_same_logits(sizes: list[int]) -> None:
    executor = ReferenceExecutor(_spec("gemma3"))
    total = min(sum(sizes), len(_TOKENS))
    expected = logits_of(executor, _TOKENS[:total])
    executor.allocate_kv(pages_for(executor.layout, total), "f32")
    start, rows = 0, []
    for size in sizes:
        chunk = _TOKENS[start : min(start + size, total)]
        if len(chunk):
            rows.append(executor.forward(simple_step(executor.layout, chunk, start)))
        start += size
    _close(np.concatenate(rows), expected)


def test_two_sequences_in_scattered_pages(windowed: ModelSpec) -> None:
    executor = ReferenceExecutor(windowed)
    first, second = _TOKENS[:37], _TOKENS[40:63]
    expected = np.concatenate([logits_of(executor, first), logits_of(executor, second)])
    pages = np.array([[6, 1, 4], [3, 0, 0]], np.int32)
    pages[1, 1] = 5
    executor.allocate_kv((8, 8), "f32")
    executor.forward(_two(executor, first[:20], second[:7], 0, 0, pages))
    out = executor.forward(_two(executor, first[20:], second[7:], 20, 7, pages))
    _close(out[:17], expected[20:37])
    _close(out[17:], expected[44:])


def _two(
    executor: ReferenceExecutor,
    first: npt.NDArray[np.int32],
    second: npt.NDArray[np.int32],
    start: int,
    second_start: int,
    pages: npt.NDArray[np.int32],
) -> Step:
    positions = np.concatenate([np.arange(len(first)) + start, np.arange(len(second)) + second_start])
    sequences = np.repeat([0, 1], [len(first), len(second)]).astype(np.int32)
    slots = pages[sequences, positions // PAGE_SIZE].astype(np.int64) * PAGE_SIZE + positions % PAGE_SIZE
    nothing = np.zeros(2, np.int32)
    tables = GroupTables(pages, nothing, nothing.astype(np.int64), slots, positions.astype(np.int32))
    tokens = np.concatenate([first, second])
    rows = np.arange(len(tokens), dtype=np.int32)
    return Step(tokens, positions, sequences, (tables,) * len(executor.layout.groups), rows)


def test_pages_that_left_the_native_window_can_be_dropped(windowed: ModelSpec) -> None:
    executor = ReferenceExecutor(windowed)
    expected = logits_of(executor, _TOKENS)
    executor.allocate_kv(pages_for(executor.layout, len(_TOKENS)), "f32")
    executor.forward(simple_step(executor.layout, _TOKENS[:64]))
    step = simple_step(executor.layout, _TOKENS[64:], 64)
    local = next(i for i, group in enumerate(executor.layout.groups) if group.window == 8)
    tables = step.groups[local]
    kept = replace(  # pages 0 to 2 are gone: positions 48 and later are logical index 0 and later
        tables,
        pages=np.ascontiguousarray(tables.pages[:, 3:]),
        window_start=np.array([48], np.int64),
        row_index=tables.row_index - 48,
    )
    groups = tuple(kept if i == local else group for i, group in enumerate(step.groups))
    garbage = np.frombuffer(bytes(executor.layout.values_per_token(local) * PAGE_SIZE * 4), np.float32) + 99
    for page in range(3):
        executor.write_page(local, page, garbage.tobytes())
    _close(executor.forward(replace(step, groups=groups)), expected[64:])


@pytest.mark.parametrize("name", ["llama_gqa_tied_f16", "mix_q4_k_m_like"])
def test_sinks_look_near_however_far_the_window_is(name: str) -> None:
    """A window `gap` tokens after the sinks gives what it gives next to them: only distances matter."""
    executor = ReferenceExecutor(_spec(name), dtype=np.float64)
    sinks, gap = PAGE_SIZE, 1_000_000
    executor.allocate_kv(pages_for(executor.layout, 64), "f32")
    executor.forward(simple_step(executor.layout, _TOKENS[:sinks]))
    near = simple_step(executor.layout, _TOKENS[sinks:40], sinks)
    expected = executor.forward(near)
    far_tables = replace(near.groups[0], sink_tokens=np.array([sinks], np.int32), window_start=np.array([sinks + gap]))
    far = replace(near, positions=near.positions + gap, groups=(far_tables,), sink_positions=near.positions)
    _close(executor.forward(far), expected)
    wrong = executor.forward(replace(far, sink_positions=far.positions))
    assert np.abs(wrong - expected).max() > 1e-2


def test_a_tree_gives_each_path_its_own_logits(llama: ModelSpec) -> None:
    """Rows: the root, two children of it, a grandchild of the second child."""
    executor = ReferenceExecutor(llama)
    prompt, tree = _TOKENS[:21], np.array([50, 60, 70, 80], np.int32)
    parents = [-1, 0, 0, 2]
    paths = [[0], [0, 1], [0, 2], [0, 2, 3]]
    executor.allocate_kv(pages_for(executor.layout, 40), "f32")
    executor.forward(simple_step(executor.layout, prompt))
    ancestors = np.zeros((4, 4), np.bool_)
    for row, path in enumerate(paths):
        assert path[-1] == row
        assert parents[row] == (path[-2] if len(path) > 1 else -1)
        ancestors[row, path] = True
    step = simple_step(executor.layout, tree, len(prompt))
    depths = np.array([len(path) - 1 for path in paths])
    step = replace(step, positions=len(prompt) + depths, tree=TreeMask(ancestors))
    logits = executor.forward(step)
    for row, path in enumerate(paths):
        _close(logits[row], logits_of(executor, np.concatenate([prompt, tree[path]]))[-1])


def test_moved_and_saved_pages_hold_the_same_keys(llama: ModelSpec) -> None:
    executor = ReferenceExecutor(llama)
    expected = logits_of(executor, _TOKENS[:40])
    executor.allocate_kv((6,), "f16")
    executor.forward(simple_step(executor.layout, _TOKENS[:32]))
    executor.write_page(0, 5, executor.read_page(0, 0))
    step = simple_step(executor.layout, _TOKENS[32:40], 32)
    tables = replace(step.groups[0], pages=np.array([[5, 3, 2]], np.int32))
    moved = executor.forward(replace(step, groups=(tables,), moves=(PageMove(0, 1, 3),)))
    assert np.abs(moved - expected[32:]).max() < 0.02
    with pytest.raises(ExecutionError, match="a saved page has 3 bytes"):
        executor.write_page(0, 0, b"abc")


def test_only_the_wanted_rows_and_hidden_vectors(llama: ModelSpec) -> None:
    executor = ReferenceExecutor(llama)
    expected = logits_of(executor, _TOKENS[:10])
    hidden = logits_of(executor, _TOKENS[:10], output=Output.HIDDEN)
    assert hidden.shape == (10, llama.hidden_size)
    rows = np.array([3, 9], np.int32)
    executor.allocate_kv((1,), "f32")
    _close(executor.forward(simple_step(executor.layout, _TOKENS[:10], output_rows=rows)), expected[rows])


def test_little_memory_gives_the_same_logits(windowed: ModelSpec) -> None:
    rich, poor = ReferenceExecutor(windowed), ReferenceExecutor(windowed, cache_bytes=1000)
    _close(logits_of(poor, _TOKENS[:9]), logits_of(rich, _TOKENS[:9]))
    assert poor.memory().weights["cpu"] <= 1000 < rich.memory().weights["cpu"]


def test_what_cannot_be_run_is_said(llama: ModelSpec) -> None:
    executor = ReferenceExecutor(llama, ExecutorOptions(max_rows=4))
    with pytest.raises(ExecutionError, match="allocate_kv"):
        executor.forward(simple_step(executor.layout, [1]))
    with pytest.raises(ExecutionError, match="staging"):
        executor.allocate_kv((1,), "q4")
    executor.allocate_kv((1,), "f32")
    with pytest.raises(ExecutionError, match="5 rows"):
        executor.forward(simple_step(executor.layout, [1] * 5))
    executor.close()
    executor.close()
    assert executor.memory().kv == {"cpu": 0}

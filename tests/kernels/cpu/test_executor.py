"""Ragged steps, pages, sinks, trees and threads: every way to run the same rows gives the same logits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from localllm.kernels.cpu.executor import CpuExecutor
from localllm.kernels.errors import ExecutionError
from localllm.kernels.executor import ExecutorOptions
from localllm.kernels.kv_layout import PAGE_SIZE
from localllm.kernels.reference import ReferenceExecutor
from localllm.kernels.registry import open_executor
from localllm.kernels.single_sequence import allocate_for, logits_of, pages_for, simple_step
from localllm.kernels.spec import Layer, ModelSpec
from localllm.kernels.step import GroupTables, Output, PageMove, Step, TreeMask

TOKENS = np.random.default_rng(4).integers(0, 96, 700).astype(np.int32)

Logits = npt.NDArray[np.float32]


@pytest.fixture(scope="module")
def spec(spec_maker: Callable[..., Any]) -> ModelSpec:
    """A layer that sees everything and one with a window of 20."""
    maker = spec_maker()
    layers = (
        Layer(maker.attention(heads=6, kv_heads=2), maker.feed_forward()),
        Layer(maker.attention(heads=6, kv_heads=2, window=20), maker.feed_forward()),
    )
    made: ModelSpec = maker.model(*layers)
    return made


@pytest.fixture(scope="module")
def executor(spec: ModelSpec) -> Iterator[CpuExecutor]:
    made = CpuExecutor(spec, ExecutorOptions(threads=2, max_rows=64))
    yield made
    made.close()


@pytest.fixture(scope="module")
def reference(spec: ModelSpec) -> ReferenceExecutor:
    return ReferenceExecutor(spec, dtype=np.float64)


def _close(actual: Logits, expected: Logits) -> None:
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_rows_are_equal_however_they_are_grouped(threads: int, spec: ModelSpec, executor: CpuExecutor) -> None:
    expected = logits_of(executor, TOKENS[:80], chunk=40)
    other = CpuExecutor(spec, ExecutorOptions(threads=threads, max_rows=40))
    for chunk in (1, 2, 3, 7, 16, 17, 40):
        np.testing.assert_array_equal(logits_of(other, TOKENS[:80], chunk=chunk), expected)
    other.close()


def test_rows_are_equal_whichever_thread_claims_a_piece(spec_maker: Callable[..., Any]) -> None:
    """Matrices of a MiB and more, of which four threads take the second half piece by piece, also with one row."""
    maker = spec_maker()
    spec = maker.model(*(Layer(maker.attention(), maker.feed_forward(4096)) for _ in range(2)))
    found = []
    for threads in (1, 4):
        made = CpuExecutor(spec, ExecutorOptions(threads=threads, max_rows=4))
        found += [logits_of(made, TOKENS[:12], chunk=chunk) for chunk in (1, 4)]
        made.close()
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


def test_a_context_of_several_chunks(executor: CpuExecutor, reference: ReferenceExecutor) -> None:
    expected = logits_of(reference, TOKENS)
    tiled = logits_of(executor, TOKENS, chunk=64)
    _close(tiled, expected)
    executor.allocate_kv(pages_for(executor.layout, 700), "f32", (0, 0))
    for start in range(0, 640, 64):
        executor.forward(simple_step(executor.layout, TOKENS[start : start + 64], start))
    for position in range(640, 650):
        row = executor.forward(simple_step(executor.layout, TOKENS[position : position + 1], position))
        np.testing.assert_array_equal(row[0], tiled[position])


def _tables(
    pages: list[list[int]],
    sequences: npt.NDArray[np.int32],
    index: npt.NDArray[np.int32],
    sinks: int = 0,
    start: int = 0,
) -> GroupTables:
    width = max(len(row) for row in pages)
    table = np.array([row + [0] * (width - len(row)) for row in pages], np.int32)
    slots = table[sequences, index // PAGE_SIZE].astype(np.int64) * PAGE_SIZE + index % PAGE_SIZE
    count = len(pages)
    return GroupTables(table, np.full(count, sinks, np.int32), np.full(count, start, np.int64), slots, index)


def _step(parts: list[tuple[int, npt.NDArray[np.int32], int]], pages: list[list[int]], groups: int) -> Step:
    """Rows of several sequences: (sequence, tokens, position of the first)."""
    sequences = np.concatenate([np.full(len(tokens), number, np.int32) for number, tokens, _ in parts])
    positions = np.concatenate([start + np.arange(len(tokens)) for _, tokens, start in parts])
    tables = _tables(pages, sequences, positions.astype(np.int32))
    tokens = np.concatenate([tokens for _, tokens, _ in parts])
    return Step(tokens, positions, sequences, (tables,) * groups, np.arange(len(tokens), dtype=np.int32))


def test_prefill_beside_decodes_in_scattered_pages(executor: CpuExecutor) -> None:
    alone = [logits_of(executor, TOKENS[100 * i : 100 * i + 40]) for i in range(3)]
    executor.allocate_kv((12, 12), "f32", (0, 0))
    pages = [[9, 2, 5], [1, 7, 3], [11, 0, 8]]
    parts = [TOKENS[100 * i : 100 * i + 40] for i in range(3)]
    first = _step([(0, parts[0][:39], 0), (1, parts[1][:17], 0)], pages, 2)
    out = executor.forward(first)
    np.testing.assert_array_equal(out, np.concatenate([alone[0][:39], alone[1][:17]]))
    mixed = _step([(0, parts[0][39:], 39), (1, parts[1][17:19], 17), (2, parts[2], 0)], pages, 2)
    out = executor.forward(mixed)
    np.testing.assert_array_equal(out, np.concatenate([alone[0][39:], alone[1][17:19], alone[2]]))


def test_many_decodes_at_once(executor: CpuExecutor) -> None:
    expected = [logits_of(executor, TOKENS[i : i + 21])[20] for i in range(30)]
    executor.allocate_kv((60, 60), "f32", (0, 0))
    pages = [[2 * i, 2 * i + 1] for i in range(30)]
    for first in range(0, 30, 3):
        parts = [(i, TOKENS[i : i + 20], 0) for i in range(first, first + 3)]
        executor.forward(_step(parts, pages, 2))
    out = executor.forward(_step([(i, TOKENS[i + 20 : i + 21], 20) for i in range(30)], pages, 2))
    np.testing.assert_array_equal(out, np.array(expected))


@pytest.mark.parametrize("rows", [1, 12])
@pytest.mark.parametrize("window", [20, 40])
def test_evicted_keys_and_sinks(rows: int, window: int, spec_maker: Callable[..., Any]) -> None:
    """16 sink keys, then keys from position 64 on; the query looks at sinks from a near position.

    A window of 40 positions sees them from there, but would not from the row's own position.
    """
    maker = spec_maker()
    spec = maker.model(*(Layer(maker.attention(window=size), maker.feed_forward()) for size in (None, window)))
    outputs = []
    for runner in (CpuExecutor(spec, ExecutorOptions(threads=2, max_rows=64)), ReferenceExecutor(spec)):
        runner.allocate_kv((8, 8), "f32", (0, 0))
        runner.forward(simple_step(runner.layout, TOKENS[:16]))
        index = 16 + np.arange(20, dtype=np.int32)
        zeros = np.zeros(20, np.int32)
        tables = _tables([[0, 5, 6, 7]], zeros, index, 16, 64)
        positions = 64 + np.arange(20)
        step = Step(TOKENS[64:84], positions, zeros, (tables,) * 2, zeros[:0], sink_positions=positions - 48)
        runner.forward(step)
        index, zeros, positions = 36 + np.arange(rows, dtype=np.int32), zeros[:rows], 84 + np.arange(rows)
        tables = _tables([[0, 5, 6, 7]], zeros, index, 16, 64)
        tokens, wanted = TOKENS[84 : 84 + rows], np.arange(rows, dtype=np.int32)
        step = Step(tokens, positions, zeros, (tables,) * 2, wanted, sink_positions=positions - 48)
        outputs.append(runner.forward(step).copy())
        runner.close()
    _close(*outputs)


def test_a_position_of_ten_million(executor: CpuExecutor, reference: ReferenceExecutor) -> None:
    outputs = []
    for runner in (executor, reference):
        runner.allocate_kv((4, 4), "f32", (0, 0))
        step = simple_step(runner.layout, TOKENS[:30])
        step = replace(step, positions=step.positions + 10_000_000)
        tables = replace(step.groups[0], window_start=np.array([10_000_000]))
        outputs.append(runner.forward(replace(step, groups=(tables,) * 2)).copy())
    _close(*outputs)


def test_a_tree_of_guesses(executor: CpuExecutor, reference: ReferenceExecutor) -> None:
    parents = [-1, 0, 0, 1, 2, 3, 1]
    ancestors = np.zeros((7, 7), np.bool_)
    depth: list[int] = []
    for node, parent in enumerate(parents):
        if parent >= 0:
            ancestors[node] = ancestors[parent]
        ancestors[node, node] = True
        depth.append(0 if parent < 0 else depth[parent] + 1)
    outputs = []
    for runner in (executor, reference):
        runner.allocate_kv((4, 4), "f32", (0, 0))
        runner.forward(simple_step(runner.layout, TOKENS[:27]))
        step = simple_step(runner.layout, TOKENS[30:37], 27)
        step = replace(step, positions=27 + np.array(depth), tree=TreeMask(ancestors))
        outputs.append(runner.forward(step).copy())
    _close(*outputs)


@pytest.mark.parametrize("count", [2, 7, 15, 20])
@pytest.mark.parametrize("committed", [5, 27, 250])
def test_every_row_of_a_tree_is_what_its_own_line_gives(count: int, committed: int, executor: CpuExecutor) -> None:
    random = np.random.default_rng(count)
    parents = [-1, *(int(random.integers(0, node)) for node in range(1, count))]
    ancestors = np.eye(count, dtype=np.bool_)
    lines: list[list[int]] = []
    for node, parent in enumerate(parents):
        lines.append([*(lines[parent] if parent >= 0 else []), node])
        ancestors[node, lines[node]] = True
    guesses = TOKENS[300 : 300 + count]
    executor.allocate_kv((20, 20), "f32", (0, 0))
    for start in range(0, committed, 64):
        executor.forward(simple_step(executor.layout, TOKENS[start : min(start + 64, committed)], start))
    step = simple_step(executor.layout, guesses, committed)
    depths = np.array([len(line) for line in lines])
    together = executor.forward(replace(step, positions=committed + depths - 1, tree=TreeMask(ancestors))).copy()
    for node, line in enumerate(lines):
        alone = executor.forward(simple_step(executor.layout, guesses[line], committed))[-1]
        np.testing.assert_allclose(together[node], alone, rtol=0, atol=1e-4)


def test_hidden_vectors_beside_logits(executor: CpuExecutor, reference: ReferenceExecutor) -> None:
    for rows in (1, 5):
        for runner in (executor, reference):
            allocate_for(runner, 32, "f32")
            step = simple_step(runner.layout, TOKENS[:rows])
            hidden = runner.forward(replace(step, output=Output.HIDDEN)).copy()
            logits = runner.forward(step).copy()
            beside = np.full_like(hidden, np.nan)
            np.testing.assert_array_equal(runner.forward(replace(step, hidden=beside)), logits)
            np.testing.assert_array_equal(beside, hidden)


@pytest.mark.parametrize("taps", [(0,), (1,), (0, 1), ()])
@pytest.mark.parametrize("wanted", [[0], [1, 4], [5]])
def test_what_layers_leave_beside_hidden_vectors(
    executor: CpuExecutor, reference: ReferenceExecutor, taps: tuple[int, ...], wanted: list[int]
) -> None:
    spec, tokens = reference.spec, TOKENS[: wanted[-1] + 1]
    judges = [  # models that end there
        ReferenceExecutor(
            replace(spec, layers=spec.layers[: layer + 1], head=replace(spec.head, norm=None)), dtype=np.float64
        )
        for layer in taps
    ]
    expected = []
    for judge in (reference, *judges):
        allocate_for(judge, 32, "f32")
        step = replace(simple_step(judge.layout, tokens), output_rows=np.array(wanted, np.int32))
        expected.append(judge.forward(replace(step, output=Output.HIDDEN)))
    for runner in (reference, executor):
        allocate_for(runner, 32, "f32")
        step = replace(simple_step(runner.layout, tokens), output_rows=np.array(wanted, np.int32))
        logits = runner.forward(step).copy()
        beside = np.full((len(wanted), (1 + len(taps)) * spec.hidden_size), np.nan, np.float32)
        np.testing.assert_array_equal(runner.forward(replace(step, hidden=beside, taps=taps)), logits)
        _close(beside, np.hstack(expected))


def test_moved_and_saved_pages(executor: CpuExecutor) -> None:
    expected = logits_of(executor, TOKENS[:33])[32]
    executor.allocate_kv((6, 6), "f32", (0, 0))
    executor.forward(simple_step(executor.layout, TOKENS[:32]))
    saved = executor.read_page(0, 1)
    executor.write_page(0, 1, bytes(len(saved)))
    executor.write_page(0, 4, saved)
    step = _step([(0, TOKENS[32:33], 32)], [[0, 4, 2]], 2)
    step = replace(step, groups=(step.groups[0], _tables([[0, 5, 2]], np.zeros(1, np.int32), np.array([32], np.int32))))
    out = executor.forward(replace(step, moves=(PageMove(1, 1, 5),)))
    np.testing.assert_array_equal(out[0], expected)
    with pytest.raises(ExecutionError, match="bytes"):
        executor.write_page(0, 0, saved[:-1])


def test_half_precision_pages(executor: CpuExecutor, reference: ReferenceExecutor) -> None:
    _close(logits_of(executor, TOKENS[:50], kv_type="f16"), logits_of(reference, TOKENS[:50], kv_type="f16"))


def test_hidden_vectors_and_chosen_rows(executor: CpuExecutor, reference: ReferenceExecutor) -> None:
    _close(
        logits_of(executor, TOKENS[:9], output=Output.HIDDEN), logits_of(reference, TOKENS[:9], output=Output.HIDDEN)
    )
    whole = logits_of(executor, TOKENS[:50])
    executor.allocate_kv(pages_for(executor.layout, 50), "f32", (0, 0))
    wanted = np.array([3, 48, 49], np.int32)
    np.testing.assert_array_equal(
        executor.forward(simple_step(executor.layout, TOKENS[:50], output_rows=wanted)), whole[wanted]
    )
    nothing = executor.forward(simple_step(executor.layout, TOKENS[:50], output_rows=wanted[:0]))
    assert nothing.shape == (0, 96)


@pytest.mark.parametrize("post_norm", [False, True])
@pytest.mark.parametrize("output", Output)
def test_the_last_layer_of_chosen_rows(post_norm: bool, output: Output, spec_maker: Callable[..., Any]) -> None:
    maker = spec_maker()
    after = {"post_norm": maker.norm()} if post_norm else {}
    layers = (Layer(maker.attention(**after), maker.feed_forward(**after)) for _ in range(2))
    executor = CpuExecutor(maker.model(*layers), ExecutorOptions(threads=2, max_rows=80))
    whole = logits_of(executor, TOKENS[:80], output=output)
    steps: list[list[tuple[int, int, Sequence[int]]]] = [
        [(0, 40, []), (40, 80, [0, 1, 2, 3, 4, 20, 21, 39])],
        [(0, 80, range(1, 80, 2))],
        [(0, 80, range(30, 70))],
    ]
    for chunks in steps:
        executor.allocate_kv(pages_for(executor.layout, 80), "f32", (0,))
        for start, stop, rows in chunks:
            wanted = np.array(rows, np.int32)
            step = simple_step(executor.layout, TOKENS[start:stop], start, output_rows=wanted)
            out = executor.forward(replace(step, output=output))
            np.testing.assert_array_equal(out, whole[start + wanted])
    executor.close()


def test_what_cannot_be_run_is_an_error(spec: ModelSpec) -> None:
    executor = open_executor(spec, "cpu", ExecutorOptions(threads=1, max_rows=8))
    with pytest.raises(ExecutionError, match="allocate_kv"):
        executor.forward(simple_step(executor.layout, TOKENS[:1]))
    with pytest.raises(ExecutionError, match="staging"):
        executor.allocate_kv((1, 1), "q2", (0, 0))
    executor.allocate_kv((1, 1), "f32", (0, 0))
    with pytest.raises(ExecutionError, match="rows"):
        executor.forward(simple_step(executor.layout, TOKENS[:9]))
    executor.close()
    executor.close()


def test_an_idle_executor_uses_no_cpu(spec: ModelSpec) -> None:
    executor = CpuExecutor(spec, ExecutorOptions(threads=2))
    executor.allocate_kv((1, 1), "f32", (0, 0))
    executor.forward(simple_step(executor.layout, TOKENS[:1]))
    end = time.monotonic() + 60
    used = 1.0
    while used > 0.05 and time.monotonic() < end:  # the threads park soon; on a busy machine it takes longer
        before = time.process_time()
        time.sleep(0.5)
        used = time.process_time() - before
    assert used <= 0.05
    executor.close()


def test_memory_is_accounted_for(executor: CpuExecutor) -> None:
    executor.allocate_kv((3, 5), "f16", (0, 0))
    use = executor.memory()
    assert use.kv["cpu"] == 16 * 2 * 2 * 2 * 16 * (3 + 5)
    assert use.weights["cpu"] > 0
    assert use.workspace["cpu"] > 0
    assert "avx" in executor.describe() or "portable" in executor.describe()

"""The parts into which a row's active neurons are cut."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import pytest

from localllm.kernels.cpu.compile import KernelCompiler, KernelSource
from localllm.kernels.cpu.isa import choose_isa
from localllm.kernels.cpu.sparse.neurons import emit_edge

if TYPE_CHECKING:
    import numpy.typing as npt

    from localllm.kernels.cpu.emit import Emitter
    from localllm.kernels.cpu.ir_types import Value

PARTS = 16


def _edges(active: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """The blocks at which parts begin, and where the last one ends, as kernels find them."""
    blocks = len(active) // 32
    halvings = blocks.bit_length()
    starts = np.concatenate([[0], np.cumsum(active.reshape(-1, 16).sum(axis=1))]).astype(np.int32)
    found = np.full(PARTS + 1, -1)

    def emit(e: Emitter, record: Value, step: Value, thread: Value) -> None:
        source, count, target = e.fields(record, 3)

        def edge(part: Value, _: list[Value]) -> None:
            block = emit_edge(e, e.pointer(source), count, part, e.integer(PARTS), halvings)
            e.store(block, target, e.mul(part, 8))

        e.loop(PARTS + 1, [], edge)

    record = np.array([starts.ctypes.data, blocks, found.ctypes.data], np.int64)
    KernelCompiler(choose_isa()).compile(KernelSource("edges of a test", str(halvings), emit)).call(
        record.ctypes.data, 0, 0
    )
    return found


@pytest.mark.parametrize("order", ["hottest first", "anywhere", "coldest first"])
def test_parts_have_equal_numbers_of_neurons_that_fire(order: str) -> None:
    """12% fire, the hottest 26% of the neurons in 63% of the cases, as measured on a real model."""
    rng = np.random.default_rng(5)
    rates = np.sort(rng.beta(0.75, 5.5, 448 * 32))[::-1]
    rates = {"hottest first": rates, "anywhere": rng.permutation(rates), "coldest first": rates[::-1]}[order]
    active = rng.random(len(rates)) < rates
    edges = _edges(active)
    assert edges[0] == 0
    assert (np.diff(edges) >= 0).all()
    sizes = np.array([active[32 * a : 32 * b].sum() for a, b in itertools.pairwise(edges)])
    assert sizes.sum() == active.sum()
    assert sizes.max() <= 1.2 * sizes.mean()


@pytest.mark.parametrize("count", [0, 1, 5])
def test_few_neurons_are_each_in_one_part(count: int) -> None:
    active = np.zeros(12 * 32, np.bool_)
    active[np.random.default_rng(count).permutation(len(active))[:count]] = True
    edges = _edges(active)
    assert sum(int(active[32 * a : 32 * b].sum()) for a, b in itertools.pairwise(edges)) == count

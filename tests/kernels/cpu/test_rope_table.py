"""Factors that were computed ahead are those of each position by itself."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from localllm.kernels.cpu.rope_table import RopeTable
from localllm.kernels.spec import Rope

DIMENSIONS, LANES, ROWS = 6, 8, 20
ROPE = Rope(10000.0 ** -(np.arange(DIMENSIONS // 2) / 3), interleaved=True, magnitude=1.5)


def expected(positions: list[int]) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    angles = np.array(positions)[:, None] * ROPE.inverse_frequencies
    result = np.zeros((len(positions), 2 * LANES))
    result[:, :LANES] = 1
    for pair in range(DIMENSIONS // 2):
        for lane, sign in ((2 * pair, -1), (2 * pair + 1, 1)):
            result[:, lane] = 1.5 * np.cos(angles[:, pair])
            result[:, LANES + lane] = sign * 1.5 * np.sin(angles[:, pair])
    return result


@given(st.lists(st.tuples(st.integers(0, 200), st.lists(st.integers(0, 30), min_size=1, max_size=ROWS)), max_size=20))
def test_rows_in_any_order(steps: list[tuple[int, list[int]]]) -> None:
    table = np.zeros((ROWS, 2 * LANES), np.float32)
    rope = RopeTable(ROPE, table)
    for start, offsets in steps:
        positions = [start + offset for offset in offsets]
        table[:] = np.nan
        if len(positions) == 1:
            rope.fill_one(positions[0])
        else:
            rope.fill(np.array(positions, np.int64))
        np.testing.assert_allclose(table[: len(positions)], expected(positions), rtol=0, atol=1e-6)

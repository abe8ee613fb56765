"""Cosines and sines for the rows of a step, one table for every distinct rope of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from localllm.kernels.spec import Rope

    Floats = npt.NDArray[np.float32]

_BLOCK, _NEAR = 64, 16  # positions that are computed together when rows come one by one, or a few at a time


class RopeTable:
    """Fills rows of [own factors | neighbour factors] for pairs of neighbouring values.

    Angles are computed in float64, so a position of ten million is as exact as the first. Beyond the rotated values
    the factors are 1 and 0.
    """

    def __init__(self, rope: Rope, table: Floats) -> None:
        self._rope = rope
        self._table = table
        self._width = table.shape[1]
        self._block: Floats | None = None
        self._first = 0

    def fill(self, positions: npt.NDArray[np.int64]) -> None:
        """Rows for these positions."""
        first, last = int(positions.min()), int(positions.max())
        if last - first < _NEAR:
            block = self._compute_ahead(first, last)
            self._table[: len(positions)] = block[positions - self._first]
        else:
            self._table[: len(positions)] = self._factors(positions)

    def fill_one(self, position: int) -> None:
        """The first row, for one position; neighbouring positions are computed ahead."""
        block = self._compute_ahead(position, position)
        self._table[0] = block[position - self._first]

    def _compute_ahead(self, first: int, last: int) -> Floats:
        """A block with these positions."""
        if self._block is None or first < self._first or last >= self._first + _BLOCK:
            self._first = first
            self._block = self._factors(first + np.arange(_BLOCK))
        return self._block

    def _factors(self, positions: npt.NDArray[np.int64]) -> Floats:
        rope, lanes = self._rope, self._width // 2
        angles = positions[:, None] * rope.inverse_frequencies
        cos, sin = np.cos(angles) * rope.magnitude, np.sin(angles) * rope.magnitude
        result = np.zeros((len(positions), self._width), np.float32)
        result[:, :lanes] = 1
        half = len(rope.inverse_frequencies)
        result[:, 0 : 2 * half : 2] = cos
        result[:, 1 : 2 * half : 2] = cos
        result[:, lanes : lanes + 2 * half : 2] = -sin
        result[:, lanes + 1 : lanes + 2 * half : 2] = sin
        return result

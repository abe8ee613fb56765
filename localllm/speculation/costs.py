"""What a step costs by its number of rows, relative to one row: learned from the steps that run."""

from __future__ import annotations

import math

_PRIOR = 0.1  # of a row beside the first, before anything was measured
_STEEPER, _FLATTEST = 1.5, 0.02  # rows beyond all measured ones: by how much more than those before, and at least
_TREND = 0.1  # weight of a new measurement in the overall level, which follows depth and load
_SHAPE = 0.1  # the same for one number of rows
_OUTLIER = math.log(1.5)
_EXACT = 16  # up to so many rows each number has a cost of its own, for kernels work in tiles of a few rows


class StepCosts:
    """Seconds of a step by its rows: a level that all share, times a factor for each number of rows.

    The level moves with every measurement, so that a context that grew does not make unmeasured counts look cheap.
    Larger numbers of rows, which seldom come twice, share their factor with their neighbours.
    """

    def __init__(self) -> None:
        self._level: float | None = None  # log seconds of one row
        self._factors: dict[int, float] = {1: 0.0}  # log of the cost relative to one row
        self._seen: dict[int, int] = {}
        self._asked: dict[int, float] = {}  # what `factor` answered since a factor changed
        self.version = 0  # of the factors

    @property
    def known(self) -> bool:
        """Whether anything was measured."""
        return self._level is not None

    def observe(self, rows: int, seconds: float) -> None:
        """A step of `rows` rows took so long."""
        value = math.log(max(seconds, 1e-7))
        if self._level is None:
            self._level = value - math.log(self.factor(rows))
        size = _size(rows)
        seen = self._seen[size] = self._seen.get(size, 0) + 1
        if seen == 1 and rows > 1:
            return  # the first step of a size may have to make room for it
        expected = self._level + math.log(self.factor(rows))
        error = min(max(value - expected, -_OUTLIER), _OUTLIER)
        shape = max(_SHAPE, 0.7 / max(1, seen - 1))
        if rows == 1:
            self._level += max(_TREND, 0.7 / seen) * error
            return
        self._factors[size] = max(0.0, math.log(self.factor(size)) + shape * error)
        self._asked.clear()
        self.version += 1
        self._level += _TREND * error * 0.5

    def seconds(self, rows: int) -> float:
        """The expected time of a step."""
        return math.exp(self._level or 0.0) * self.factor(rows)

    def factor(self, rows: int) -> float:
        """The expected time relative to a step of one row."""
        found = self._asked.get(rows)
        if found is None:
            found = self._asked[rows] = self._factor(rows)
        return found

    def _factor(self, rows: int) -> float:
        known = self._factors.get(rows)
        if known is not None:
            return math.exp(known)
        below = max(count for count in self._factors if count < rows)
        above = min((count for count in self._factors if count > rows), default=None)
        low = math.exp(self._factors[below])
        if above is None:
            slope = _PRIOR if below == 1 else max(_FLATTEST, _STEEPER * (low - 1) / (below - 1))
            return low + slope * (rows - below)
        high = math.exp(self._factors[above])
        return low + (high - low) * (rows - below) / (above - below)


def _size(rows: int) -> int:
    """The number of rows under which a measurement is kept: itself, or the nearest of four for each power of two."""
    if rows <= _EXACT:
        return rows
    spacing = 1 << (rows.bit_length() - 3)
    return (rows + spacing // 2) // spacing * spacing

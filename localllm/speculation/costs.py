"""What a step costs by its number of rows, relative to one row: learned from the steps that run."""

from __future__ import annotations

import math

_PRIOR = 0.1  # of a row beside the first, before anything was measured
_TREND = 0.1  # weight of a new measurement in the overall level, which follows depth and load
_SHAPE = 0.1  # the same for one number of rows
_OUTLIER = math.log(1.5)


class StepCosts:
    """Seconds of a step by its rows: a level that all share, times a factor for each number of rows.

    The level moves with every measurement, so that a context that grew does not make unmeasured counts look cheap.
    """

    def __init__(self) -> None:
        self._level: float | None = None  # log seconds of one row
        self._factors: dict[int, float] = {1: 0.0}  # log of the cost relative to one row
        self._seen: dict[int, int] = {}

    @property
    def known(self) -> bool:
        """Whether anything was measured."""
        return self._level is not None

    def observe(self, rows: int, seconds: float) -> None:
        """A step of `rows` rows took so long."""
        value = math.log(max(seconds, 1e-7))
        if self._level is None:
            self._level = value - math.log(self.factor(rows))
        seen = self._seen[rows] = self._seen.get(rows, 0) + 1
        if seen == 1 and rows > 1:
            return  # the first step of a size may have to make room for it
        expected = self._level + math.log(self.factor(rows))
        error = min(max(value - expected, -_OUTLIER), _OUTLIER)
        shape = max(_SHAPE, 0.7 / max(1, seen - 1))
        if rows == 1:
            self._level += max(_TREND, 0.7 / seen) * error
            return
        self._factors[rows] = max(0.0, math.log(self.factor(rows)) + shape * error)
        self._level += _TREND * error * 0.5

    def seconds(self, rows: int) -> float:
        """The expected time of a step."""
        return math.exp(self._level or 0.0) * self.factor(rows)

    def factor(self, rows: int) -> float:
        """The expected time relative to a step of one row."""
        known = self._factors.get(rows)
        if known is not None:
            return math.exp(known)
        below = max(count for count in self._factors if count < rows)
        above = min((count for count in self._factors if count > rows), default=None)
        low = math.exp(self._factors[below])
        if above is None:
            return low + _PRIOR * (rows - below)
        high = math.exp(self._factors[above])
        return low + (high - low) * (rows - below) / (above - below)

"""What a step costs by its number of rows, relative to one row: learned from the steps that run."""

from __future__ import annotations

import math

_PRIOR = 0.1  # of a row beside the first, before anything was measured
# Rows beyond all measured ones cost what those before cost on average; beyond many rows, which keep the machine busy,
# half as much again; never nothing at all.
_BUSY, _SLOPE, _BUSY_SLOPE, _FLATTEST = 8, 1.0, 1.5, 0.02
_TREND = 0.1  # weight of a new measurement in the overall level, which follows depth and load
_SHAPE = 0.1  # the same for one number of rows
_OUTLIER = math.log(1.5)
_ABOVE = 0.4  # weight of times above the expected one: what disturbs a step makes it longer, never shorter
_KEPT, _KEPT_MOST = 50, 300  # steps after which a cost is forgotten, for each time that it was seen, and at most
_EXACT = 16  # up to so many rows each number has a cost of its own, for kernels work in tiles of a few rows


class StepCosts:
    """Seconds of a step by its rows: a level that all share, times a factor for each number of rows.

    The level moves with every measurement, so that a context that grew does not make unmeasured counts look cheap.
    Larger numbers of rows, which seldom come twice, share their factor with their neighbours. A number of rows that
    looked expensive once would never be tried again, so what was not seen again for a while is forgotten.
    """

    def __init__(self) -> None:
        self._level: float | None = None  # log seconds of one row
        self._factors: dict[int, float] = {1: 0.0}  # log of the cost relative to one row
        self._seen: dict[int, int] = {}
        self._last: dict[int, int] = {}  # steps so far when a size was seen
        self._steps = 0
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
        self._steps += 1
        self._forget()
        size = _size(rows)
        self._last[size] = self._steps
        seen = self._seen[size] = self._seen.get(size, 0) + 1
        if seen == 1 and rows > 1:
            return  # the first step of a size may have to make room for it
        expected = self._level + math.log(self.factor(rows))
        error = min(max(value - expected, -_OUTLIER), _OUTLIER)
        if seen > 2 and error > 0:
            error *= _ABOVE
        shape = max(_SHAPE, 1 / max(1, seen - 1))
        if rows == 1:
            self._level += max(_TREND, 0.7 / seen) * error
            return
        self._factors[size] = max(0.0, math.log(self.factor(size)) + shape * error)
        self._asked.clear()
        self.version += 1
        self._level += _TREND * error * 0.5

    def _forget(self) -> None:
        if self._steps % _KEPT:
            return
        for size, last in list(self._last.items()):
            if size > 1 and self._steps - last > min(_KEPT * self._seen[size], _KEPT_MOST):
                del self._last[size], self._seen[size]
                self._factors.pop(size, None)
                self._asked.clear()
                self.version += 1

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
            return low + self._slope(below, low) * (rows - below)
        high = math.exp(self._factors[above])
        return low + (high - low) * (rows - below) / (above - below)

    @staticmethod
    def _slope(rows: int, factor: float) -> float:
        if rows == 1:
            return _PRIOR
        return max(_FLATTEST, (_BUSY_SLOPE if rows >= _BUSY else _SLOPE) * (factor - 1) / (rows - 1))


def _size(rows: int) -> int:
    """The number of rows under which a measurement is kept: itself, or the next of four for each power of two."""
    if rows <= _EXACT:
        return rows
    spacing = 1 << ((rows - 1).bit_length() - 3)
    return -(-rows // spacing) * spacing

"""How many threads the next step uses: measured, because one thread on a busy core stalls all the others."""

from __future__ import annotations

from collections import deque

_WINDOW = 8  # steps whose median stands for a thread count
_PROBE_STEPS = 3  # steps of a trial; their best counts, since a first step on woken threads is slow
_FIRST_PROBE = 24  # steps before the first trial
_LONGEST_PAUSE = 1024  # steps between trials once they keep failing
_BETTER = 0.96  # a trial must beat the present count by this factor to be adopted
_SLOW = 1.5  # a window this much slower than the best one ends the pause early


class ThreadGovernor:
    """Chooses among thread counts 1, 2, 4, ... `most` by the time that similar steps took.

    `choose` gives the count for the next step, `record` tells how long it took, in seconds per unit of work.
    Trials of a neighbouring count are rare and back off, so a quiet machine pays below one percent for them.
    """

    __slots__ = ("_best", "_candidates", "_current", "_direction", "_pause", "_since_trial", "_times", "_trial")

    def __init__(self, most: int) -> None:
        counts = [1 << k for k in range(most.bit_length()) if 1 << k < most]
        self._candidates = [*counts, most]
        self._current = len(self._candidates) - 1
        self._times: deque[float] = deque(maxlen=_WINDOW)
        self._best = float("inf")
        self._trial: tuple[int, list[float]] | None = None
        self._direction = -1
        self._pause = _FIRST_PROBE
        self._since_trial = 0

    def choose(self) -> int:
        """Threads for the next step."""
        return self._candidates[self._current if self._trial is None else self._trial[0]]

    def record(self, seconds: float) -> None:
        """Note that the step just run took `seconds`, normalised so that equal work gives equal numbers."""
        if len(self._candidates) == 1:
            return
        if self._trial is not None:
            self._trial[1].append(seconds)
            if len(self._trial[1]) == _PROBE_STEPS:
                self._finish_trial(*self._trial)
            return
        self._times.append(seconds)
        self._since_trial += 1
        if len(self._times) < _WINDOW:
            return
        median = self._median()
        self._best = min(self._best, median)
        suddenly_slow = median > _SLOW * self._best
        if self._since_trial >= (min(self._pause, _WINDOW) if suddenly_slow else self._pause):
            if suddenly_slow:
                self._direction = -1
                self._best = median
            self._start_trial()

    def _median(self) -> float:
        return sorted(self._times)[len(self._times) // 2]

    def _start_trial(self) -> None:
        other = self._current + self._direction
        if not 0 <= other < len(self._candidates):
            self._direction = -self._direction
            other = self._current + self._direction
        self._trial = (other, [])

    def _finish_trial(self, index: int, seconds: list[float]) -> None:
        if min(seconds) < _BETTER * self._median():
            self._current = index
            self._best = float("inf")
            self._pause = _FIRST_PROBE
            self._times.clear()
        else:
            self._direction = -self._direction
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        self._trial = None
        self._since_trial = 0

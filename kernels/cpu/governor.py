"""How many threads the next step uses: measured, because one thread on a busy core stalls all the others."""

from __future__ import annotations

import statistics
from collections import deque

_WINDOW = 8  # steps whose median stands for a thread count
_TRIAL_STEPS = 12  # of a trial: the present count and the other one in turns, as what a step costs may differ and drift
_LOST = 4  # steps after which a trial ends whose every step was slower
_WINS = 2  # trials in a row that a count must win
_FIRST_PROBE = 24  # steps before the first trial
_LONGEST_PAUSE = 1024  # steps between trials once they keep failing
_BETTER = 0.96  # a trial's median must beat that of the present count beside it by this factor
_SLOW = 1.5  # a window this much slower than the best one ends the pause early


class ThreadGovernor:
    """Chooses among thread counts 1, 2, 4, ... `most` by the time that similar steps took.

    `choose` gives the count for the next step, `record` tells how long it took, in seconds per unit of work.
    Trials of a neighbouring count are rare and back off, so a quiet machine pays below one percent for them. Steps of
    sparse models and of experts differ by a quarter from token to token, and neighbours on the machine come and go, so
    a count is compared with the present one in the same steps, and must win twice.
    """

    __slots__ = (
        "_best",
        "_candidates",
        "_current",
        "_direction",
        "_pause",
        "_since_trial",
        "_times",
        "_trial",
        "_wins",
    )

    def __init__(self, most: int, first: int | None = None) -> None:
        """`first`: threads to begin with, or the next possible number above (None: the most)."""
        counts = [1 << k for k in range(most.bit_length()) if 1 << k < most]
        self._candidates = [*counts, most]
        wanted = most if first is None else min(first, most)
        self._current = next(i for i, count in enumerate(self._candidates) if count >= wanted)
        self._times: deque[float] = deque(maxlen=_WINDOW)
        self._best = float("inf")
        self._trial: tuple[int, list[float]] | None = None
        self._direction = -1
        self._pause = _FIRST_PROBE
        self._since_trial = 0
        self._wins = 0

    def choose(self) -> int:
        """Threads for the next step."""
        trying = self._trial is not None and len(self._trial[1]) % 2 == 1
        return self._candidates[self._trial[0] if trying and self._trial is not None else self._current]

    def record(self, seconds: float) -> None:
        """Note that the step just run took `seconds`, normalised so that equal work gives equal numbers."""
        if len(self._candidates) == 1:
            return
        if self._trial is not None:
            self._trial[1].append(seconds)
            index, samples = self._trial
            if len(samples) == _TRIAL_STEPS or (len(samples) == _LOST and min(samples[1::2]) > max(samples[::2])):
                self._finish_trial(index, samples)
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
        self._trial = None
        self._since_trial = 0
        if statistics.median(seconds[1::2]) < _BETTER * statistics.median(seconds[::2]):
            self._wins += 1
            if self._wins < _WINS:
                self._trial = (index, [])
                return
            self._direction = 1 if index < self._current else -1  # the next trial asks whether that was right
            self._current = index
            self._best = float("inf")
            self._pause = _FIRST_PROBE
            self._times.clear()
        else:
            self._direction = -self._direction
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        self._wins = 0

"""Speculation of one sequence: whom to ask for guesses, and how likely these are."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .acceptance import Acceptance
from .draft import MOST_GUESSES, NOTHING, merge
from .protocol import Proposal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .draft import Draft
    from .ledger import Ledger
    from .protocol import Ask, Drafter

_LEAST_ASKED, _MORE = 3, 2  # a step of four rows costs hardly more than one of two or three
_PATIENCE = 4  # drafts in a row of which nothing was worth verifying
_NAPS = (16, 256)  # steps without drafts after a loss: the first time, and at most
_FORCED = 2  # guesses verified after a nap, whatever is expected of them
_RERUN = 0.85  # what a guess beside the first line is worth of one on it: if it is right, its row runs once more
_NONE = Proposal(NOTHING, ())
_NEWEST = 0.2  # weight of the newest draft in what one takes
_HOPE = 0.2  # weight of the newest draft in what is expected of a drafter that costs time


@dataclass(slots=True)
class Standing:
    """What sequences of a kind leave to the next.

    How often guesses were right, how long drafters that cost time rest next, and the seconds that a draft of theirs
    takes.
    """

    experience: Acceptance
    nap: int = 0
    seconds: float | None = None

    def took(self, seconds: float) -> None:
        """A draft took so long; one that was disturbed counts little."""
        if self.seconds is None:
            self.seconds = seconds
        self.seconds += _NEWEST * (min(seconds, 2 * self.seconds) - self.seconds)


class AdaptiveGuide:
    """Drafters that cost nothing are always heard; others where they promise more, and not for a while after losses."""

    def __init__(
        self,
        drafters: Sequence[Drafter],
        standing: Standing,
        ledger: Ledger,
        *,
        trees: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`trees`: guesses of several drafters go together; otherwise they are the line that promises most."""
        self._cheap = [drafter for drafter in drafters if drafter.cheap]
        self._costly = [drafter for drafter in drafters if not drafter.cheap]
        self._acceptance = Acceptance(memory=0.95, weight=3, parent=standing.experience)
        self._ledger, self._standing, self._clock = ledger, standing, clock
        self._draft, self._trees = NOTHING, trees
        # Guesses of a drafter that costs time: two more than were worth verifying the last time, for steps of 4 and 8
        # rows cost hardly more than those of 3 and 7.
        self._asked = _LEAST_ASKED
        self._hope = 1.0  # tokens that a draft of those that cost time is expected to bring
        self._asked_costly = False
        self._drew_costly = False  # and it promised more than the others
        self._in_vain = 0
        self._nap, self._next_nap = standing.nap, max(_NAPS[0], standing.nap)
        self._woke = False  # from a nap: one try, whatever is expected

    def propose(self, ask: Ask, least: float) -> Proposal:
        """Guesses for the next step; those less likely than `least` are of no use."""
        most = min(ask.most, MOST_GUESSES)
        self._asked_costly, self._drew_costly, forced = False, False, 0
        draft, chances = self._best(self._cheap, ask, most, least)
        if self._costly and sum(chances) < self._hope and not self._resting():
            least, forced, self._woke = (0.0, _FORCED, False) if self._woke else (least, 0, False)
            began = self._clock()
            costly, promise = self._best(self._costly, ask, min(most, self._asked), least)
            self._standing.took(self._clock() - began)
            self._hope += _HOPE * (sum(promise) - self._hope)
            self._drew_costly = sum(promise) > sum(chances)
            if self._trees:
                draft = merge((costly, draft) if self._drew_costly else (draft, costly)).first(most)
                chances = self._chances(draft, least)
            elif self._drew_costly:
                draft, chances = costly, promise
            self._asked_costly = True
        self._draft = draft
        return Proposal(draft, chances, forced) if chances else _NONE

    def _best(self, drafters: Sequence[Drafter], ask: Ask, most: int, least: float) -> tuple[Draft, list[float]]:
        """The line that promises most, or the tree of all, and its chances."""
        drafts = [drafter.draft(ask.tokens, most, ask.hidden) for drafter in drafters]
        if self._trees:
            drafts = [merge(drafts).first(most)]
        best: tuple[Draft, list[float]] = NOTHING, []
        for draft in drafts:
            chances = self._chances(draft, least)
            if sum(chances) > sum(best[1]):
                best = draft, chances
        return best

    def _chances(self, draft: Draft, least: float) -> list[float]:
        """Of each guess; none at all where even the likeliest is less likely than `least`."""
        rates: dict[int, float] = {}
        chances: list[float] = []
        for node, (parent, grade) in enumerate(zip(draft.parents, draft.grades, strict=True)):
            rate = rates.get(grade)
            if rate is None:
                rate = rates[grade] = self._acceptance.rate(grade)
            if node == 0 and rate < least and not self._trees:
                return []
            if parent != node - 1:
                rate *= _RERUN
            chances.append(rate if parent < 0 else rate * chances[parent])
        return chances if chances and max(chances) >= least else []

    def take(self, nodes: Sequence[int]) -> Draft:
        """These guesses of the last proposal are verified in the next step, the others are not."""
        chosen = self._draft.keep(nodes)
        if self._asked_costly:
            self._in_vain = 0 if len(chosen) else self._in_vain + 1
            self._asked = max(_LEAST_ASKED, max(chosen.depths(), default=0) + _MORE)
            if self._ledger.in_debt or self._in_vain >= _PATIENCE or not self._pays:
                self._nap, self._next_nap = self._next_nap, min(2 * self._next_nap, _NAPS[1])
        return chosen

    @property
    def _pays(self) -> bool:
        """Whether what a draft is expected to bring is worth the time that it takes."""
        return self._hope * self._ledger.token > (self._standing.seconds or 0.0)

    def _resting(self) -> bool:
        if self._nap == 0:
            return False
        self._nap -= 1
        if self._nap == 0 and not self._ledger.affords(self._standing.seconds or 0.0):
            self._nap = 1  # until losses are made good
        self._woke = self._nap == 0
        return True

    def judge(self, draft: Draft, accepted: Sequence[int]) -> None:
        """The step verified `draft`: these of its guesses were right."""
        self._acceptance.judge(draft, accepted)
        self._ledger.settle(len(draft), len(accepted))
        right = not self._ledger.in_debt or len(accepted) == len(draft)
        if self._drew_costly and accepted and right and self._pays:
            self._nap, self._next_nap = 0, _NAPS[0]

    def close(self) -> None:
        """The sequence is over; those that rested, rest in the next one."""
        self._standing.nap = self._next_nap if self._nap else 0
        for drafter in (*self._cheap, *self._costly):
            drafter.close()

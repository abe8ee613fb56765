"""Speculation of one sequence: whom to ask for guesses, and how likely these are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .acceptance import Acceptance
from .draft import MOST_GUESSES, NOTHING
from .protocol import Proposal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .draft import Draft
    from .ledger import Ledger
    from .protocol import Ask, Drafter

_LEAST_ASKED, _MORE = 3, 2  # a step of four rows costs hardly more than one of two or three
_PATIENCE = 4  # drafts in a row of which nothing was worth verifying
_NAPS = (16, 256)  # steps without drafts after a loss: the first time, and at most
_FORCED = 2  # guesses verified after a nap, whatever is expected of them
_NONE = Proposal(NOTHING, ())
_HOPE = 0.2  # weight of the newest draft in what is expected of a drafter that costs time


@dataclass(slots=True)
class Standing:
    """What sequences of a kind leave to the next: how often guesses were right, how long costly drafters rest next."""

    experience: Acceptance
    nap: int = 0


class AdaptiveGuide:
    """Drafters that cost nothing are always heard; others where they promise more, and not for a while after losses."""

    def __init__(self, drafters: Sequence[Drafter], standing: Standing, ledger: Ledger) -> None:
        self._cheap = [drafter for drafter in drafters if drafter.cheap]
        self._costly = [drafter for drafter in drafters if not drafter.cheap]
        self._acceptance = Acceptance(memory=0.95, weight=3, parent=standing.experience)
        self._ledger, self._standing = ledger, standing
        self._draft: Draft = NOTHING
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
            costly, promise = self._best(self._costly, ask, min(most, self._asked), least)
            self._hope += _HOPE * (sum(promise) - self._hope)
            if sum(promise) > sum(chances):
                draft, chances, self._drew_costly = costly, promise, True
            self._asked_costly = True
        self._draft = draft
        return Proposal(draft, chances, forced) if chances else _NONE

    def _best(self, drafters: Sequence[Drafter], ask: Ask, most: int, least: float) -> tuple[Draft, list[float]]:
        """The line that promises most, and its chances: one, not a tree of all (docs/speculation.md, "Same text")."""
        best: tuple[Draft, list[float]] = NOTHING, []
        for drafter in drafters:
            draft = drafter.draft(ask.tokens, most, ask.hidden)
            chances = self._chances(draft, least)
            if sum(chances) > sum(best[1]):
                best = draft, chances
        return best

    def _chances(self, draft: Draft, least: float) -> list[float]:
        """Of each guess; none at all where even the first is less likely than `least`."""
        if not len(draft):
            return []
        rates: dict[int, float] = {}
        chances: list[float] = []
        for node, (parent, grade) in enumerate(zip(draft.parents, draft.grades, strict=True)):
            rate = rates.get(grade)
            if rate is None:
                rate = rates[grade] = self._acceptance.rate(grade)
            if node == 0 and rate < least:
                return []
            chances.append(rate if parent < 0 else rate * chances[parent])
        return chances

    def take(self, nodes: Sequence[int]) -> Draft:
        """These guesses of the last proposal are verified in the next step, the others are not."""
        chosen = self._draft.keep(nodes)
        if self._asked_costly:
            self._in_vain = 0 if len(chosen) else self._in_vain + 1
            self._asked = max(_LEAST_ASKED, max(chosen.depths(), default=0) + _MORE)
            if self._ledger.in_debt or self._in_vain >= _PATIENCE:
                self._nap, self._next_nap = self._next_nap, min(2 * self._next_nap, _NAPS[1])
        return chosen

    def _resting(self) -> bool:
        if self._nap == 0:
            return False
        self._nap -= 1
        self._woke = self._nap == 0
        return True

    def judge(self, draft: Draft, accepted: Sequence[int]) -> None:
        """The step verified `draft`: these of its guesses were right."""
        self._acceptance.judge(draft, accepted)
        self._ledger.settle(len(draft), len(accepted))
        if self._drew_costly and accepted and (not self._ledger.in_debt or len(accepted) == len(draft)):
            self._nap, self._next_nap = 0, _NAPS[0]

    def close(self) -> None:
        """The sequence is over; those that rested, rest in the next one."""
        self._standing.nap = self._next_nap if self._nap else 0
        for drafter in (*self._cheap, *self._costly):
            drafter.close()

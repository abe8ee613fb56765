"""Decides how much is guessed: what is verified must be expected to pay, by measured acceptance and measured costs.

A step of M rows costs t(M); with guesses it brings 1 + sum of their chances tokens. Guesses are taken, likeliest first,
while tokens per second rise. An account of seconds won and lost keeps an eye on the estimates themselves: a sequence in
debt asks for a wide margin (free drafters) or does not draft at all for a while (others), then tries again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .acceptance import Acceptance
from .costs import StepCosts
from .draft import NOTHING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    import numpy.typing as npt

    from .draft import Draft
    from .protocol import Drafter, Guide, Load

MOST_GUESSES = 15  # in one step
_MARGIN, _MARGIN_IN_DEBT = 1.03, 1.25  # by how much guessing must be expected to be faster
_ALLOWED_LOSS = 0.01  # of the time without guesses
_ALLOWANCE, _CREDIT = 3.0, 30.0  # steps of one row: debt that is allowed at once, and credit that is remembered
_PROBE_EVERY = 100  # steps: guesses that do not pay are tried, one at a time, so that a change is seen
_PATIENCE = 4  # drafts in a row of which nothing was worth verifying
_NAPS = (16, 256)  # steps without drafts after a loss: the first time, and at most


class AdaptiveSpeculation:
    """Speculation of an engine: costs and experience are shared, each sequence has its own drafters and account."""

    def __init__(
        self,
        make_drafters: Callable[[], Sequence[Drafter]],
        *,
        wants_hidden: bool = False,
        shared: Callable[[], None] | None = None,
    ) -> None:
        self.wants_hidden = wants_hidden
        self.costs = StepCosts()
        self.experience = Acceptance(memory=0.998, weight=4)
        self.standing = Standing()
        self._make_drafters = make_drafters
        self._close_shared = shared

    def begin(self) -> Guide:
        """For a new sequence."""
        return AdaptiveGuide(self._make_drafters(), self.costs, self.experience, self.standing)

    def observe(self, rows: int, seconds: float) -> None:
        """A step of so many rows, all of them of running answers, took so long."""
        self.costs.observe(rows, seconds)

    def close(self) -> None:
        """Free what the drafters share."""
        if self._close_shared is not None:
            self._close_shared()


@dataclass(slots=True)
class Standing:
    """What the last sequence left to the next: seconds won or owed, and how long it would have rested next."""

    account: float = 0.0
    nap: int = 0


class AdaptiveGuide:
    """Speculation of one sequence: the first of its drafters whose guesses are worth verifying is heard."""

    def __init__(
        self, drafters: Sequence[Drafter], costs: StepCosts, experience: Acceptance, standing: Standing
    ) -> None:
        self.wants_hidden = any(drafter.wants_hidden for drafter in drafters)
        self._drafters, self._costs = drafters, costs
        self._acceptance = Acceptance(memory=0.95, weight=6, parent=experience)
        self._standing = standing
        self._account = min(0.0, standing.account)  # seconds won
        self._baseline = 0.0  # seconds that the steps would have taken without guesses
        self._load: Load | None = None
        self._since_probe = self._in_vain = 0
        self._asked = 2  # guesses of a drafter that costs time: one more than was worth verifying the last time
        self._nap, self._next_nap = standing.nap, max(_NAPS[0], standing.nap)
        self._woke = False  # from a nap: one try, whatever is expected

    @property
    def in_debt(self) -> bool:
        """Whether guesses have cost more than they may."""
        return self._account < -_ALLOWED_LOSS * self._baseline - _ALLOWANCE * self._costs.seconds(1)

    def draft(self, tokens: Sequence[int], most: int, load: Load, hidden: npt.NDArray[np.float32] | None) -> Draft:
        """The guesses that are worth verifying in the next step."""
        self._load = load
        most = min(most, MOST_GUESSES)
        if most < 1 or not self._costs.known:
            return NOTHING
        self._baseline += self._costs.seconds(load.rows)
        for drafter in self._drafters:
            if not drafter.cheap and self._resting():
                continue
            began = time.perf_counter()
            draft = drafter.draft(tokens, most if drafter.cheap else min(most, self._asked), hidden)
            self._account -= time.perf_counter() - began
            chosen = self._worth(draft, load) if len(draft) else NOTHING
            if not drafter.cheap:
                self._woke = False
                self._in_vain = 0 if len(chosen) else self._in_vain + 1
                self._asked = max(chosen.depths(), default=0) + 1
                self._rest()
            if len(chosen):
                return chosen
        return NOTHING

    def _resting(self) -> bool:
        if self._nap == 0:
            return False
        self._nap -= 1
        self._woke = self._nap == 0
        return True

    def _worth(self, draft: Draft, load: Load) -> Draft:
        chances: list[float] = []
        for parent, grade in zip(draft.parents, draft.grades, strict=True):
            chances.append(self._acceptance.rate(grade) * (1.0 if parent < 0 else chances[parent]))
        order = sorted(range(len(chances)), key=lambda node: -chances[node])  # a parent stays before its children
        best = load.tokens / self._costs.seconds(load.rows)
        best *= _MARGIN_IN_DEBT if self.in_debt else _MARGIN
        tokens, count = load.tokens, 0
        for taken, node in enumerate(order, 1):
            tokens += chances[node]
            rate = tokens / self._costs.seconds(load.rows + taken)
            if rate > best:
                best, count = rate, taken
        self._since_probe += 1
        if count == 0 and self._woke:
            count = min(2, len(order))
        elif count == 0 and self._since_probe >= _PROBE_EVERY and not self.in_debt:
            count = 1
        if count:
            self._since_probe = 0
        return draft.keep(sorted(order[:count]))

    def judge(self, draft: Draft, accepted: Sequence[int]) -> None:
        """The step verified `draft`: these of its guesses were right."""
        self._acceptance.judge(draft, accepted)
        load = self._load
        if load is None:
            return
        without, with_guesses = (self._costs.seconds(load.rows + extra) for extra in (0, len(draft)))
        self._account += len(accepted) * without - (with_guesses - without)
        self._account = min(self._account, _CREDIT * self._costs.seconds(1))
        if accepted and (self._account > 0 or len(accepted) == len(draft)):
            self._nap, self._next_nap = 0, _NAPS[0]

    def _rest(self) -> None:
        """Drafters that cost time, in debt or asked in vain, rest for a while, then have one more try."""
        if self.in_debt or self._in_vain >= _PATIENCE:
            self._nap, self._next_nap = self._next_nap, min(2 * self._next_nap, _NAPS[1])

    def close(self) -> None:
        """The sequence is over; what it owes, the next one owes."""
        self._standing.account = self._account + _ALLOWED_LOSS * self._baseline
        self._standing.nap = self._next_nap if self._nap else 0
        for drafter in self._drafters:
            drafter.close()

"""Decides how much is guessed: what is verified must be expected to pay, by measured acceptance and measured costs.

A step of M rows costs t(M); with guesses it brings the sum of their chances more tokens. All sequences of the step
compete for the same rows: guesses are taken, likeliest first, while tokens per second rise. An account of seconds won
and lost keeps an eye on the estimates themselves: in debt, a wide margin is asked for.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from .acceptance import Acceptance
from .costs import StepCosts
from .draft import MOST_GUESSES, NOTHING
from .guide import AdaptiveGuide, Standing
from .ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .draft import Draft
    from .protocol import Ask, Drafter, Guide, Load, Proposal

_MARGIN, _MARGIN_IN_DEBT = 1.03, 1.25  # by how much guessing must be expected to be faster
# Steps after which guesses that do not pay are tried, one at a time, so that a change is seen.
_PROBE_EVERY, _PROBE_EVERY_IN_DEBT = 100, 400


class AdaptiveSpeculation:
    """Speculation of an engine: costs, experience and account are shared, each sequence has its own drafters."""

    def __init__(
        self,
        make_drafters: Callable[[], Sequence[Drafter]],
        *,
        wants_hidden: bool = False,
        taps: tuple[int, ...] = (),
        trees: bool = False,
        shared: Callable[[], None] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`trees`: a step may verify several lines; `clock` (seconds): what making guesses takes is measured by it."""
        self.wants_hidden, self.taps = wants_hidden, taps
        self.costs = StepCosts()
        self.ledger = Ledger(self.costs)
        # Text that takes the likeliest tokens is guessed much better than text that draws them.
        self._standings = {drawn: Standing(Acceptance(memory=0.998, weight=4)) for drawn in (False, True)}
        self._make_drafters, self._trees = make_drafters, trees
        self._close_shared = shared
        self._clock = clock
        self._since_probe = 0
        self._least: tuple[object, float] = None, 0.0  # answered last: for what, and what
        self._probed: int | None = None  # guesses that had been right when the last step was a probe

    def begin(self, *, drawn: bool = False) -> Guide:
        """For a new sequence, whose tokens are `drawn` by chance or not."""
        standing, drafters = self._standings[drawn], self._make_drafters()
        return AdaptiveGuide(drafters, standing, self.ledger, trees=self._trees, clock=self._clock)

    @property
    def experience(self) -> Acceptance:
        """How often guesses were right in texts that are not drawn."""
        return self._standings[False].experience

    def observe(self, rows: int, seconds: float) -> None:
        """A step of so many rows, all of them of running answers, took so long."""
        self.costs.observe(rows, seconds)

    def plan(self, asks: Sequence[Ask], load: Load, most: int) -> list[Draft]:
        """The guesses that are worth verifying in the next step, for each sequence; at most `most` in all."""
        most = min(most, MOST_GUESSES * len(asks))
        if most < 1 or not self.costs.known:
            return [NOTHING] * len(asks)
        self.ledger.begin(load)
        began = self._clock()
        self._since_probe += 1
        if self._probed is not None and self.ledger.right > self._probed:
            self._since_probe = _PROBE_EVERY_IN_DEBT  # it was right: once more
        self._probed = None
        in_debt = self.ledger.in_debt
        probing = self._since_probe >= (_PROBE_EVERY_IN_DEBT if in_debt else _PROBE_EVERY)
        margin = _MARGIN_IN_DEBT if in_debt else _MARGIN
        least = 0.0 if probing else self._least_chance(load, most, margin)
        if least >= 1:
            return [NOTHING] * len(asks)
        proposals = [ask.guide.propose(ask, least) for ask in asks]
        if any(proposal.chances for proposal in proposals):
            chosen = self._choose(proposals, load, most, margin, probing=probing)
        else:
            chosen = [[]] * len(asks)
        drafts = [ask.guide.take(nodes) for ask, nodes in zip(asks, chosen, strict=True)]
        guesses = sum(map(len, drafts))
        self.ledger.plan(load, guesses, self._clock() - began)
        return drafts

    def _least_chance(self, load: Load, most: int, margin: float) -> float:
        """Without a guess at least as likely as this, no number of guesses pays."""
        key = load, most, margin, self.costs.version
        if self._least[0] != key:
            need = margin * load.tokens / self.costs.factor(load.rows)
            counts = (*range(1, min(most, MOST_GUESSES) + 1), most)
            chance = min((need * self.costs.factor(load.rows + count) - load.tokens) / count for count in counts)
            self._least = key, chance
        return self._least[1]

    def _choose(
        self, proposals: Sequence[Proposal], load: Load, most: int, margin: float, *, probing: bool
    ) -> list[list[int]]:
        """The guesses of each proposal that make the step fastest, ascending."""
        order = sorted(  # a parent stays before its children
            (-chance, index, node)
            for index, proposal in enumerate(proposals)
            for node, chance in enumerate(proposal.chances)
        )[:most]
        best, tokens, count = margin * load.tokens / self.costs.factor(load.rows), float(load.tokens), 0
        for taken, (negative, _, _) in enumerate(order, 1):
            tokens -= negative
            rate = tokens / self.costs.factor(load.rows + taken)
            if rate > best:
                best, count = rate, taken
        if probing and not count and order:
            count, self._probed = 1, self.ledger.right
        if count:
            self._since_probe = 0
        chosen: list[list[int]] = [[] for _ in proposals]
        for _, index, node in order[:count]:
            chosen[index].append(node)
        for nodes, proposal in zip(chosen, proposals, strict=True):
            if not nodes and proposal.forced:
                best_first = sorted(range(len(proposal.chances)), key=lambda node: -proposal.chances[node])
                nodes.extend(best_first[: proposal.forced])
            nodes.sort()
        return chosen

    def close(self) -> None:
        """Free what the drafters share."""
        if self._close_shared is not None:
            self._close_shared()

"""Who guesses, and what an engine asks of speculation as a whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

    from .draft import Draft


class Drafter(Protocol):
    """Guesses the next tokens of one sequence. Guesses change how fast an answer comes, never what it says."""

    cheap: bool  # drafting costs next to nothing, so that it can be done before deciding whether it pays
    wants_hidden: bool  # `draft` needs the model's own vector of the last verified row

    def draft(self, tokens: Sequence[int], most: int, hidden: npt.NDArray[np.float32] | None) -> Draft:
        """At most `most` guesses for what follows `tokens`, which only grow from call to call.

        `hidden` [n, (1 + taps) * hidden] are the vectors behind the final norm, and those that layers left, of the rows
        before the last n tokens, those of the last step, if they are wanted.
        """

    def close(self) -> None:
        """The sequence is over."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a step carries without guesses: its rows, and the tokens that it brings."""

    rows: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Ask:
    """A sequence whose next tokens may be guessed: at most `most` of them. `hidden` as in `Drafter.draft`."""

    guide: Guide
    tokens: Sequence[int]
    most: int
    hidden: npt.NDArray[np.float32] | None = None


class Guide(Protocol):
    """Speculation of one sequence, as the engine sees it."""

    def propose(self, ask: Ask, least: float) -> Proposal:
        """Guesses for the next step; those less likely than `least` are of no use."""

    def take(self, nodes: Sequence[int]) -> Draft:
        """These guesses of the last proposal are verified in the next step, the others are not."""

    def judge(self, draft: Draft, accepted: Sequence[int]) -> None:
        """The step verified `draft`: these of its guesses were right."""

    def close(self) -> None:
        """The sequence is over."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """Guesses, the chance of each (that it and all before it are right), and how many to try whatever is expected."""

    draft: Draft
    chances: Sequence[float]
    forced: int = 0


class Speculation(Protocol):
    """Speculation of one engine; used on its thread only."""

    wants_hidden: bool  # some drafter does
    taps: tuple[int, ...]  # layers whose output it wants too

    def begin(self, *, drawn: bool = False) -> Guide:
        """For a new sequence, whose tokens are `drawn` by chance or not."""

    def plan(self, asks: Sequence[Ask], load: Load, most: int) -> list[Draft]:
        """The guesses that are worth verifying in the next step, for each sequence; at most `most` in all."""

    def observe(self, rows: int, seconds: float) -> None:
        """A step of so many rows, all of them of running answers, took so long."""

    def close(self) -> None:
        """Free what the drafters share; the engine has ended."""

"""What a KV policy decides: how many of a sequence's pages the next row no longer sees. Integers only.

A policy is a pure function of the sequence's length, so the keys that a token sees do not depend on how its prompt was
cut into steps, on other requests, or on what the prefix cache held: the same seed gives the same text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

from .full import FullPolicy
from .sink_window import SinkWindowPolicy

if TYPE_CHECKING:
    from collections.abc import Callable

ContextPolicy = Literal["error", "window"]


class Policy(Protocol):
    """Keeps `sink_pages` pages in front, then drops a run of pages behind them; everything later is kept."""

    @property
    def capacity(self) -> int | None:
        """How many keys a sequence has places for, if later rows take those of earlier ones (heavy hitters)."""

    def sink_pages(self, tokens: int) -> int:
        """Whole pages that hold the first `tokens` tokens which must stay; RequestError if that cannot work."""

    def dropped_pages(self, length: int, sink_pages: int) -> int:
        """Pages behind the sinks that a row at position `length` does not see. Never falls as length grows."""

    def room(self, length: int, sink_pages: int) -> int:
        """Rows that one step may add at `length` before the next drop is due or the sequence is full (0)."""

    def peak_tokens(self, rows: int) -> int:
        """The most tokens that a sequence holds while steps add at most `rows` rows."""


# what happens when a sequence is full -> who decides; the argument is (context or window) and sinks, in tokens
POLICIES: dict[ContextPolicy, Callable[[int, int | None], Policy]] = {
    "error": lambda context, sinks: FullPolicy(context),
    "window": SinkWindowPolicy,
}

"""Keep everything until the context is full."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FullPolicy:
    """Up to `context` tokens, none dropped."""

    context: int

    @property
    def capacity(self) -> int | None:
        """None: every row gets a place of its own."""
        return None

    def sink_pages(self, tokens: int) -> int:
        """Nothing is dropped, so nothing has to be protected."""
        return 0

    def dropped_pages(self, length: int, sink_pages: int) -> int:
        """Always 0."""
        return 0

    def room(self, length: int, sink_pages: int) -> int:
        """What is left of the context."""
        return max(0, self.context - length)

    def peak_tokens(self, rows: int) -> int:
        """The whole context."""
        return self.context

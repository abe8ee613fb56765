"""Heavy hitters (H2O): a sequence has pages for so many tokens; later rows take the places of keys that got little.

Which keys leave is decided by attention, in every layer and head for itself, hence by the executor: see
`kernels/selective.py`. Pages that are written again cannot be shared, so prefixes are not.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HeavyHitterPolicy:
    """Up to `context` tokens, of which `capacity` keys are kept."""

    context: int
    capacity: int

    def sink_pages(self, tokens: int) -> int:
        """No page is safe from the scores, so none can be promised."""
        return 0

    def dropped_pages(self, length: int, sink_pages: int) -> int:
        """Always 0: keys leave one by one."""
        return 0

    def room(self, length: int, sink_pages: int) -> int:
        """What is free; then row by row, since each needs the scores that the one before it left."""
        return max(0, min(self.context - length, max(1, self.capacity - length)))

    def peak_tokens(self, rows: int) -> int:
        """What is kept."""
        return min(self.capacity, self.context)

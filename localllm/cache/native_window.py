"""Layers that only ever look back over a window of their own free what fell out of it (Gemma, Mistral, gpt-oss)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from localllm.kernels.kv_layout import PAGE_SIZE

if TYPE_CHECKING:
    from localllm.kernels.kv_layout import KVLayout

    from .policy import Policy

UNLIMITED = 2**62


@dataclass(frozen=True, slots=True)
class NativeWindowPolicy:
    """Position p sees p - window + 1 to p; the executor masks by position, pages are dropped when none sees them."""

    window: int

    @property
    def capacity(self) -> int | None:
        """None: every row gets a place of its own."""
        return None

    def sink_pages(self, tokens: int) -> int:
        """The model was trained without sinks in these layers."""
        return 0

    def dropped_pages(self, length: int, sink_pages: int) -> int:
        """Pages that lie wholly before the first position that the row at `length` sees."""
        return max(0, length - self.window + 1) // PAGE_SIZE

    def room(self, length: int, sink_pages: int) -> int:
        """No limit: a step may be longer than the window."""
        return UNLIMITED

    def peak_tokens(self, rows: int) -> int:
        """The window, the rows of the step, and the unused part of the oldest page."""
        return self.window + rows + PAGE_SIZE


def native_windows(layout: KVLayout, policy: Policy) -> list[int | None]:
    """For each group the window of its own that decides what it keeps; None: `policy` does."""
    peak = policy.peak_tokens(1)
    kept = policy.capacity is not None  # keys are kept one by one; a window counts positions
    return [g.window if g.window is not None and (kept or g.window < peak) else None for g in layout.groups]

"""Finished sequences that had evicted: they cannot be shared, but the next turn of the same chat may go on with one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from localllm.kernels.kv_layout import PAGE_SIZE

from .native_window import NativeWindowPolicy

if TYPE_CHECKING:
    from array import array
    from collections.abc import Sequence

    from .sequence import CachedSequence

MOST_PARKED = 4


class ParkedSequences:
    """The latest few, oldest first; they keep their pages until somebody needs them."""

    def __init__(self, windows: Sequence[int | None]) -> None:
        self._windows = tuple(windows)
        self._sequences: list[CachedSequence] = []

    @property
    def sequences(self) -> tuple[CachedSequence, ...]:
        """Those that are parked now."""
        return tuple(self._sequences)

    def add(self, sequence: CachedSequence) -> list[CachedSequence]:
        """Park one; returns those that are too many now."""
        self._sequences.append(sequence)
        gone = self._sequences[:-MOST_PARKED]
        self._sequences = self._sequences[-MOST_PARKED:]
        return gone

    def pop_oldest(self) -> CachedSequence | None:
        """Give up the oldest one."""
        return self._sequences.pop(0) if self._sequences else None

    def take(self, tokens: array[int], sink_pages: int, longer_than: int) -> CachedSequence | None:
        """The one that shares the most tokens with `tokens`, cut to these; the caller frees the pages behind."""
        best, most = None, longer_than
        for sequence in self._sequences:
            common = min(common_tokens(sequence.tokens, tokens), sequence.length, len(tokens) - 1)
            if sequence.sink_pages == sink_pages and common > most and self._can_go_back(sequence, common):
                best, most = sequence, common
        if best is None:
            return None
        self._sequences.remove(best)
        best.tokens = tokens
        best.length = best.matched = most
        return best

    def _can_go_back(self, sequence: CachedSequence, length: int) -> bool:
        """Whether the pages are still those that a sequence of this length would have."""
        if length < max(sequence.evicted_at, sequence.sealed * PAGE_SIZE):
            return False
        return all(
            window is None or NativeWindowPolicy(window).dropped_pages(length, 0) >= table.dropped
            for window, table in zip(self._windows, sequence.tables, strict=True)
        )


def common_tokens(first: array[int], second: array[int]) -> int:
    """How many leading tokens are equal."""
    count = min(len(first), len(second))
    differs = np.frombuffer(first, np.int32, count) != np.frombuffer(second, np.int32, count)
    return int(differs.argmax()) if differs.any() else count

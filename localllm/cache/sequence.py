"""One sequence in the cache: its tokens, how many of them have keys and values, and its pages in every group."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from localllm.kernels.kv_layout import PAGE_SIZE

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    from localllm.kernels.step import PageMove

    from .prefix import Node


class PageTable:
    """The pages of one sequence in one group, in order; `dropped` of them, behind the first `sinks`, are gone."""

    __slots__ = ("_entries", "count", "dropped", "sinks")

    def __init__(self, sinks: int) -> None:
        self._entries = np.zeros(16, np.int32)
        self.count = 0
        self.sinks = sinks
        self.dropped = 0

    @property
    def entries(self) -> npt.NDArray[np.int32]:
        """[count] page entries; a view."""
        return self._entries[: self.count]

    @property
    def end(self) -> int:
        """The first position that no page covers."""
        return (self.count + self.dropped) * PAGE_SIZE

    @property
    def sink_tokens(self) -> int:
        """As in GroupTables: 0 while nothing was dropped."""
        return self.sinks * PAGE_SIZE if self.dropped else 0

    @property
    def window_start(self) -> int:
        """As in GroupTables: the position of logical index `sink_tokens`."""
        return (self.sinks + self.dropped) * PAGE_SIZE if self.dropped else 0

    def index_of(self, block: int) -> int | None:
        """Where the page of positions block * PAGE_SIZE ... is, None if it was dropped."""
        if block < self.sinks or not self.dropped:
            return block
        index = block - self.dropped
        return index if index >= self.sinks else None

    def append(self, entry: int) -> None:
        """One more page at the end."""
        if self.count == len(self._entries):
            self._entries = np.concatenate([self._entries, np.zeros(self.count, np.int32)])
        self._entries[self.count] = entry
        self.count += 1

    def drop(self, pages: int) -> list[int]:
        """Take `pages` pages out, right behind the sinks; returns their entries."""
        first, last = self.sinks, self.sinks + pages
        gone: list[int] = self._entries[first:last].tolist()
        self._entries[first : self.count - pages] = self._entries[last : self.count].copy()
        self.count -= pages
        self.dropped += pages
        return gone

    def skip(self, pages: int) -> None:
        """Begin with `pages` pages that were never there (an empty table of a window group behind a matched prefix)."""
        self.dropped = pages

    def shorten(self, count: int) -> list[int]:
        """Keep the first `count` pages; returns the entries of the others."""
        gone: list[int] = self._entries[count : self.count].tolist()
        self.count = count
        return gone

    def copy(self) -> PageTable:
        """An equal table; the caller retains the pages."""
        other = PageTable(self.sinks)
        other._entries = self._entries.copy()
        other.count, other.dropped = self.count, self.dropped
        return other


@dataclass(slots=True, eq=False)
class CachedSequence:
    """Tokens of a request; the first `length` have keys and values in `tables`. Made and changed by KVCache only,
    but for `tokens`, to which the engine appends."""

    tokens: array[int]
    tables: tuple[PageTable, ...]
    sink_pages: int
    tip: Node
    length: int = 0
    matched: int = 0  # tokens found in the cache when it was opened
    published: int = 0  # whole blocks that the prefix index knows
    sealed: int = 0  # whole blocks that lie in the quantised pool (or are sinks)
    evicted_at: int = 0  # length when the policy last dropped pages; 0: never
    evicted_tokens: int = 0  # tokens that no layer can see any more, because of the policy
    moves: list[PageMove] = field(default_factory=list)  # to be done before the next rows run
    sources: list[tuple[int, int]] = field(default_factory=list)  # (group, entry) held until the moves are done


def token_array(tokens: Iterable[int]) -> array[int]:
    """Token ids as 32-bit integers."""
    return array("i", tokens)

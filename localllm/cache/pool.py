"""The pages of one pool: who holds how many references, which are free, which only the prefix index remembers."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class PagePool:
    """Reference-counted pages 0..size-1; unreferenced pages that the prefix index knows are reused last, oldest first.

    Of free pages the lowest is taken: so a sequence's pages stay neighbours in memory, in order, however long a window
    slides over it, and executors read them as a stream.

    `forget(page)` is called when such a page is taken for something else.
    """

    def __init__(self, size: int, forget: Callable[[int], None]) -> None:
        self.size = size
        self._forget = forget
        self._holders = [0] * size
        self._indexed = bytearray(size)
        self._free = list(range(size))  # a heap
        self._cached: OrderedDict[int, None] = OrderedDict()

    @property
    def available(self) -> int:
        """Pages that `allocate` can hand out now."""
        return len(self._free) + len(self._cached)

    @property
    def held(self) -> int:
        """Pages with at least one holder."""
        return self.size - self.available

    @property
    def cached(self) -> int:
        """Pages that nobody holds and the prefix index remembers."""
        return len(self._cached)

    def holders(self, page: int) -> int:
        """How many sequences hold the page."""
        return self._holders[page]

    def allocate(self) -> int:
        """A page with one holder; the caller has checked `available`."""
        if not self._free:
            self._forget(next(iter(self._cached)))  # ends in `unindex`, which makes the page a free one
        page = heapq.heappop(self._free)
        self._holders[page] = 1
        return page

    def retain(self, page: int) -> None:
        """One more holder."""
        if self._holders[page] == 0:
            del self._cached[page]
        self._holders[page] += 1

    def release(self, page: int) -> None:
        """One holder fewer; without any, the page is cached or free."""
        self._holders[page] -= 1
        if self._holders[page] == 0:
            if self._indexed[page]:
                self._cached[page] = None
            else:
                heapq.heappush(self._free, page)

    def index(self, page: int) -> None:
        """The prefix index now knows this (held) page."""
        self._indexed[page] = 1

    def unindex(self, page: int) -> None:
        """The prefix index no longer knows this page."""
        self._indexed[page] = 0
        if self._holders[page] == 0:
            del self._cached[page]
            heapq.heappush(self._free, page)

"""One cache group's pools, addressed by page entries: >= 0 lies in the main pool, ~entry (< 0) in the staging pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .pool import PagePool

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .policy import Policy


class GroupPools:
    """Pages of one CacheGroup. A quantised cache has a small staging pool of full-precision pages, where rows write.

    `forget(entry)` is called when a page that only the prefix index remembers is taken for something else.
    """

    def __init__(self, policy: Policy, pages: int, staging_pages: int, forget: Callable[[int], None]) -> None:
        self.policy = policy
        self.quantised = staging_pages > 0
        self.main = PagePool(pages, forget)
        self.staging = PagePool(staging_pages, lambda page: forget(~page))

    @property
    def writable(self) -> PagePool:
        """The pool that rows are written to."""
        return self.staging if self.quantised else self.main

    def allocate_writable(self) -> int:
        """The entry of a fresh page that rows can be written to."""
        return ~self.staging.allocate() if self.quantised else self.main.allocate()

    def holders(self, entry: int) -> int:
        """References that sequences hold on an entry."""
        return self.main.holders(entry) if entry >= 0 else self.staging.holders(~entry)

    def retain(self, entry: int) -> None:
        """One more holder of an entry."""
        if entry >= 0:
            self.main.retain(entry)
        else:
            self.staging.retain(~entry)

    def release(self, entry: int) -> None:
        """One holder of an entry fewer."""
        if entry >= 0:
            self.main.release(entry)
        else:
            self.staging.release(~entry)

    def release_all(self, entries: Sequence[int]) -> None:
        """Release a run of pages, the last first: the oldest cached page is then always the deepest of its prefix."""
        for entry in reversed(entries):
            self.release(entry)

    def index(self, entry: int) -> None:
        """The prefix index now knows this entry."""
        if entry >= 0:
            self.main.index(entry)
        else:
            self.staging.index(~entry)

    def unindex(self, entry: int) -> None:
        """The prefix index forgot this entry."""
        if entry >= 0:
            self.main.unindex(entry)
        else:
            self.staging.unindex(~entry)

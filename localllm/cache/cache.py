"""The KV cache's book-keeping: pages of every sequence, shared prefixes, copies on write, evictions. Integers only.

The engine opens a sequence, then for every step: `room`, `reserve`, a Step by `build_step`, `commit`, and `publish`
once the step's logits were found sane. `release` at the end. What a row sees is a function of its position alone.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from localllm.kernels.kv_layout import PAGE_SIZE
from localllm.kernels.step import PageMove

from .group import GroupPools
from .native_window import NativeWindowPolicy, native_windows
from .parked import ParkedSequences
from .prefix import Match, Node, PrefixIndex
from .sequence import CachedSequence, PageTable, token_array

if TYPE_CHECKING:
    from array import array
    from collections.abc import Sequence

    from localllm.kernels.kv_layout import KVLayout

    from .policy import Policy


@dataclass(frozen=True, slots=True)
class PoolSizes:
    """Pages per group; `staging` (full precision, for sinks and recent tokens) and `seal_tokens` are 0 unless the KV
    type is quantised. A sequence's pages are sealed (moved to the main pool) whenever its length is a multiple of
    `seal_tokens`, but for its first `precise_pages` sink pages."""

    main: tuple[int, ...]
    staging: tuple[int, ...] = ()
    seal_tokens: int = 0
    precise_pages: int = 1


@dataclass(frozen=True, slots=True)
class CacheUsage:
    """Pages over all groups: in the pools, held by sequences, and kept only for their prefixes."""

    total: int
    held: int
    cached: int


class KVCache:
    """All sequences of one executor. `reuse` False: prefixes are never shared (for comparison)."""

    def __init__(self, layout: KVLayout, sizes: PoolSizes, policy: Policy, *, reuse: bool = True) -> None:
        self.policy = policy
        self._reuse = reuse and policy.capacity is None
        self.seal_tokens = sizes.seal_tokens
        self._most_precise = sizes.precise_pages
        staging = sizes.staging or (0,) * len(sizes.main)
        native = native_windows(layout, policy)
        self._index = PrefixIndex(native)
        self.groups = tuple(
            GroupPools(
                policy if window is None else NativeWindowPolicy(window),
                sizes.main[group],
                staging[group],
                partial(self._index.forget, group),
            )
            for group, window in enumerate(native)
        )
        self._index.bind(self.groups)
        self.windows = native
        self._parked = ParkedSequences(native)
        self.policy_group = native.index(None) if None in native else None
        self.releases = 0  # grows when pages may have become available

    # ---- opening and closing

    def open(self, tokens: Sequence[int], *, protected: int = 0, reuse: bool = True) -> CachedSequence:
        """A sequence of `tokens` (at least 1) whose cached prefix (not the last token) is already in place.

        `protected`: leading tokens that the policy must keep (a system prompt). Raises RequestError if it cannot.
        """
        sinks = self.sink_pages(protected)
        ids = token_array(tokens)
        match = Match(())
        if self._reuse and reuse:
            match = self._index.match(self._space(sinks), ids, len(ids) - 1, self.seal_tokens or 1)
            parked = self._parked.take(ids, sinks, match.length)
            if parked is not None:
                self._shorten(parked)
                return parked
        sequence = self._adopt(ids, sinks, match)
        if match.partial is not None and any(group.writable.available == 0 for group in self.groups):
            self._free(sequence)
            match = self._index.match(self._space(sinks), ids, len(ids) - 1, PAGE_SIZE)
            sequence = self._adopt(ids, sinks, match)
        elif match.partial is not None:
            for index, group in enumerate(self.groups):
                table = sequence.tables[index]
                copy = group.allocate_writable()
                sequence.moves.append(PageMove(index, sequence.sources[index][1], copy))
                table.append(copy)
        return sequence

    def sink_pages(self, protected: int) -> int:
        """Pages that stay in front of a sequence whose first `protected` tokens must; RequestError if they cannot."""
        return max(self.policy.sink_pages(protected), 1 if self.seal_tokens else 0)

    def precise_pages(self, sink_pages: int) -> int:
        """How many of a sequence's sink pages a quantised cache keeps in full precision."""
        return min(sink_pages, self._most_precise)

    def _space(self, sink_pages: int) -> int:
        return self.precise_pages(sink_pages) if self.seal_tokens else 0

    def root(self, sink_pages: int) -> Node:
        """Where the prefixes of sequences with so many sink pages begin in the index."""
        return self._index.root(self._space(sink_pages))

    def _adopt(self, ids: array[int], sinks: int, match: Match) -> CachedSequence:
        tables = []
        for index, group in enumerate(self.groups):
            window = self.windows[index]
            table = PageTable(sinks if window is None else 0)
            first = 0 if window is None else group.policy.dropped_pages(match.length, 0)
            table.skip(first)
            for node in match.nodes[first:]:
                entry = node.entries[index]
                if entry is None:
                    raise RuntimeError("the prefix index matched a page that is gone")
                group.retain(entry)
                table.append(entry)
            tables.append(table)
        tip = match.nodes[-1] if match.nodes else self.root(sinks)
        blocks = len(match.nodes)
        sequence = CachedSequence(ids, tuple(tables), sinks, tip, match.length, match.length, blocks)
        sequence.sealed = blocks if self.seal_tokens else 0
        if match.partial is not None:
            for index, entry in enumerate(match.partial.entries):
                if entry is not None:
                    self.groups[index].retain(entry)
                    sequence.sources.append((index, entry))
        return sequence

    def fork(self, sequence: CachedSequence) -> CachedSequence:
        """Another sequence with the same tokens that shares every page; the first to write into one copies it."""
        self._shorten(sequence)
        tables = tuple(table.copy() for table in sequence.tables)
        for group, table in zip(self.groups, tables, strict=True):
            for entry in table.entries.tolist():
                group.retain(entry)
        other = CachedSequence(token_array(sequence.tokens), tables, sequence.sink_pages, sequence.tip)
        other.length = other.matched = sequence.length
        other.published, other.sealed = sequence.published, sequence.sealed
        other.evicted_at, other.evicted_tokens = sequence.evicted_at, sequence.evicted_tokens
        return other

    @property
    def can_fork(self) -> bool:
        """Whether sequences may share pages at all."""
        return self.policy.capacity is None

    def release(self, sequence: CachedSequence, *, publish: bool) -> None:
        """The sequence is over. `publish`: its keys and values are sane and may serve later requests."""
        publish = publish and self._reuse and not sequence.moves
        if publish and sequence.evicted_at:
            for oldest in self._parked.add(sequence):
                self._free(oldest)
            self.releases += 1
            return
        if publish:
            self.publish(sequence)
            self._publish_tail(sequence)
        self._free(sequence)

    def _free(self, sequence: CachedSequence) -> None:
        self._settle(sequence)
        for group, table in zip(self.groups, sequence.tables, strict=True):
            group.release_all(table.shorten(0))
        self.releases += 1

    # ---- steps

    def room(self, sequence: CachedSequence) -> int:
        """Rows that the next step may add for this sequence; 0: the context is full."""
        room = self.policy.room(sequence.length, sequence.sink_pages)
        if self.seal_tokens:
            room = min(room, self.seal_tokens - sequence.length % self.seal_tokens)
        return room

    def fits(self, sequence: CachedSequence, others: Sequence[CachedSequence]) -> bool:
        """Whether there are pages for all tokens of a sequence, once all those of the others have theirs."""
        return all(
            group.writable.available >= sum(self._missing(group, each, index) for each in (sequence, *others))
            for index, group in enumerate(self.groups)
        )

    @staticmethod
    def _missing(group: GroupPools, sequence: CachedSequence, index: int) -> int:
        table = sequence.tables[index]
        tokens = len(sequence.tokens)
        most = min(tokens, group.policy.peak_tokens(tokens))
        return max(0, -(-most // PAGE_SIZE) - table.count)

    def reserve(self, sequence: CachedSequence, rows: int) -> bool:
        """Pages for `rows` (at most `room`) more rows; False, with nothing taken, when there are too few."""
        self._drop(sequence)
        ends = [_end(group, sequence.length + rows) for group in self.groups]
        seal = self._blocks_to_seal(sequence)
        wanted = []  # per group: pages to write to, pages to seal into
        for group, table, end in zip(self.groups, sequence.tables, ends, strict=True):
            copied = self._shared_tail(group, table, sequence.length) is not None
            added = max(0, -(-(end - table.end) // PAGE_SIZE))
            wanted.append((added + copied, sum(table.index_of(block) is not None for block in seal)))
        while not all(self._suffices(group, *pages) for group, pages in zip(self.groups, wanted, strict=True)):
            oldest = self._parked.pop_oldest()
            if oldest is None:
                return False
            self._free(oldest)
        for index, (group, table, end) in enumerate(zip(self.groups, sequence.tables, ends, strict=True)):
            for block in seal:
                at = table.index_of(block)
                if at is not None:
                    self._move(sequence, index, at, group.main.allocate())
            tail = self._shared_tail(group, table, sequence.length)
            if tail is not None:
                self._move(sequence, index, tail, group.allocate_writable())
            while table.end < end:
                table.append(group.allocate_writable())
        sequence.sealed = max(sequence.sealed, seal.stop)
        return True

    @staticmethod
    def _suffices(group: GroupPools, write: int, seal: int) -> bool:
        return group.writable.available >= write and group.main.available >= seal

    def _drop(self, sequence: CachedSequence) -> None:
        for index, (group, table) in enumerate(zip(self.groups, sequence.tables, strict=True)):
            due = group.policy.dropped_pages(sequence.length, table.sinks) - table.dropped
            if due > 0:
                group.release_all(table.drop(due))
                self.releases += 1
                if self.windows[index] is None:
                    sequence.evicted_at = sequence.length
                    sequence.evicted_tokens = table.dropped * PAGE_SIZE

    def _blocks_to_seal(self, sequence: CachedSequence) -> range:
        """Whole blocks that go to the quantised pool now; `stop` counts the blocks that need no sealing any more."""
        if not self.seal_tokens or sequence.length % self.seal_tokens:
            return range(0)
        return range(max(sequence.sealed, self.precise_pages(sequence.sink_pages)), sequence.length // PAGE_SIZE)

    @staticmethod
    def _shared_tail(group: GroupPools, table: PageTable, length: int) -> int | None:
        """Index of the page that the next row is written to, if another sequence holds it too."""
        if length % PAGE_SIZE == 0 or table.count == 0 or _end(group, length) < length:
            return None
        at = table.index_of(length // PAGE_SIZE)
        return at if at is not None and group.holders(int(table.entries[at])) > 1 else None

    def _move(self, sequence: CachedSequence, group: int, at: int, destination: int) -> None:
        entries = sequence.tables[group].entries
        source = int(entries[at])
        sequence.moves.append(PageMove(group, source, destination))
        sequence.sources.append((group, source))
        entries[at] = destination

    def commit(self, sequence: CachedSequence, rows: int) -> None:
        """The step ran: `rows` of the reserved rows (those of the next `rows` tokens) are valid now."""
        sequence.length += rows
        if self.policy.capacity is not None:
            sequence.evicted_tokens = max(0, sequence.length - self.policy.capacity)
        self._settle(sequence)

    def _settle(self, sequence: CachedSequence) -> None:
        sequence.moves.clear()
        for group, entry in sequence.sources:
            self.groups[group].release(entry)
        sequence.sources.clear()

    def _shorten(self, sequence: CachedSequence) -> None:
        """Give back the pages that hold no valid row."""
        for group, table in zip(self.groups, sequence.tables, strict=True):
            pages = -(-sequence.length // PAGE_SIZE) - table.dropped
            group.release_all(table.shorten(min(pages, table.count)))

    # ---- the prefix index

    def publish(self, sequence: CachedSequence) -> None:
        """Let other requests find the whole blocks computed so far; nothing happens after an eviction."""
        if not self._reuse or sequence.evicted_at or sequence.moves:
            return
        blocks = sequence.sealed if self.seal_tokens else sequence.length // PAGE_SIZE
        while sequence.published < blocks and sequence.tip.attached:
            start = sequence.published * PAGE_SIZE
            block = tuple(sequence.tokens[start : start + PAGE_SIZE])
            node = self._index.insert(sequence.tip, block, self._entries(sequence, sequence.published))
            self._share(sequence, sequence.published, node.entries)
            sequence.tip = node
            sequence.published += 1

    def _entries(self, sequence: CachedSequence, block: int) -> list[int | None]:
        found = []
        for table in sequence.tables:
            at = table.index_of(block)
            found.append(None if at is None else int(table.entries[at]))
        return found

    def _share(self, sequence: CachedSequence, block: int, entries: Sequence[int | None]) -> None:
        """Use the page that the index has, where another sequence had computed the same block."""
        for group, table, entry in zip(self.groups, sequence.tables, entries, strict=True):
            at = table.index_of(block)
            if at is not None and entry is not None and entry != table.entries[at]:
                group.retain(entry)
                group.release(int(table.entries[at]))
                table.entries[at] = entry

    def _publish_tail(self, sequence: CachedSequence) -> None:
        start = sequence.published * PAGE_SIZE
        if not self.seal_tokens and start < sequence.length and sequence.tip.attached:
            tail = tuple(sequence.tokens[start : sequence.length])
            self._index.insert_tail(sequence.tip, tail, self._entries(sequence, sequence.published))

    # ---- figures

    @property
    def parked(self) -> tuple[CachedSequence, ...]:
        """Finished sequences that evicted and may be gone on with."""
        return self._parked.sequences

    def usage(self) -> CacheUsage:
        """What the pools hold now; pages of parked sequences count as cached, for they are given up when needed."""
        pools = [pool for group in self.groups for pool in (group.main, group.staging)]
        held, cached = sum(pool.held for pool in pools), sum(pool.cached for pool in pools)
        parked = Counter(
            (index, entry)
            for sequence in self._parked.sequences
            for index, table in enumerate(sequence.tables)
            for entry in table.entries.tolist()
        )
        spare = sum(self.groups[index].holders(entry) == count for (index, entry), count in parked.items())
        return CacheUsage(sum(pool.size for pool in pools), held - spare, cached + spare)

    def clear(self) -> None:
        """Forget every prefix and parked sequence."""
        while (oldest := self._parked.pop_oldest()) is not None:
            self._free(oldest)
        self._index.clear()


def _end(group: GroupPools, length: int) -> int:
    """The places that a sequence of this length takes."""
    capacity = group.policy.capacity
    return length if capacity is None else min(length, capacity)

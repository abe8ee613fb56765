"""Which blocks of tokens are in the cache, as a tree: equal prefixes of different sequences are the same path.

A node is a block of up to PAGE_SIZE tokens under its parent, with one page per cache group. Its key is the tokens
themselves, not a hash of them, so two prefixes are never confused. Only the last node of a path may be shorter than a
page; it is copied before anybody writes behind it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from localllm.kernels.kv_layout import PAGE_SIZE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .group import GroupPools

Block = tuple[int, ...]


@dataclass(slots=True, eq=False)
class Node:
    """A block in the tree. `entries[g]` is None where the page of group g is gone (its window had passed)."""

    parent: Node | None
    block: Block
    entries: list[int | None]
    children: dict[Block, Node] = field(default_factory=dict)
    attached: bool = True


@dataclass(frozen=True, slots=True)
class Match:
    """The longest usable prefix: whole blocks, then `partial_tokens` of the block of `partial`."""

    nodes: tuple[Node, ...]
    partial: Node | None = None
    partial_tokens: int = 0

    @property
    def length(self) -> int:
        """Matched tokens."""
        return len(self.nodes) * PAGE_SIZE + self.partial_tokens


def common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """How many leading items are equal."""
    for index, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return index
    return min(len(first), len(second))


class PrefixIndex:
    """Trees of blocks; `space` separates sequences whose pages hold different bytes for equal tokens.

    Groups that look back over a window need only the last pages of a prefix; the others need all of them.
    """

    def __init__(self, windows: Sequence[int | None]) -> None:
        self._windows = tuple(windows)
        self._groups: tuple[GroupPools, ...] = ()
        self._roots: dict[int, Node] = {}
        self._owners: list[dict[int, Node]] = [{} for _ in windows]

    def bind(self, groups: Sequence[GroupPools]) -> None:
        """The pools that hold the pages; they call `forget`."""
        self._groups = tuple(groups)

    def root(self, space: int) -> Node:
        """Where the prefixes of a space begin."""
        if space not in self._roots:
            self._roots[space] = Node(None, (), [])
        return self._roots[space]

    def match(self, space: int, tokens: Sequence[int], limit: int, multiple: int) -> Match:
        """The longest prefix of at most `limit` tokens, a multiple of `multiple`, whose needed pages are all there."""
        node = self.root(space)
        path: list[Node] = []
        runs = [0] * len(self._windows)  # per group: pages at the end of the path that are there
        usable = 0
        for start in range(0, limit - PAGE_SIZE + 1, PAGE_SIZE):
            child = node.children.get(tuple(tokens[start : start + PAGE_SIZE]))
            if child is None:
                break
            node = child
            path.append(node)
            for group, entry in enumerate(node.entries):
                runs[group] = 0 if entry is None else runs[group] + 1
            length = start + PAGE_SIZE
            if length % multiple == 0 and self._suffices(runs, length):
                usable = len(path)
        if multiple == 1:
            partial = self._partial(node, tokens, len(path) * PAGE_SIZE, limit)
            if partial is not None:
                candidate = Match(tuple(path), *partial)
                if self._suffices([run + 1 for run in runs], candidate.length):
                    return candidate
        return Match(tuple(path[:usable]))

    def _suffices(self, runs: Sequence[int], length: int) -> bool:
        pages = -(-length // PAGE_SIZE)
        return all(
            pages - run <= (0 if window is None else max(0, length - window + 1) // PAGE_SIZE)
            for run, window in zip(runs, self._windows, strict=True)
        )

    @staticmethod
    def _partial(node: Node, tokens: Sequence[int], start: int, limit: int) -> tuple[Node, int] | None:
        rest = tuple(tokens[start : min(limit, start + PAGE_SIZE)])
        best, most = None, 0
        for child in node.children.values():
            if all(entry is not None for entry in child.entries):
                length = common_length(child.block, rest)
                if length > most:
                    best, most = child, length
        return None if best is None else (best, most)

    def insert(self, parent: Node, block: Block, entries: Sequence[int | None]) -> Node:
        """Make a (held) block known, or fill in the missing pages of one that is known already.

        It replaces shorter blocks that it begins with.
        """
        node = parent.children.get(block)
        if node is None:
            self._drop_shorter(parent, block)
            node = Node(parent, block, [None] * len(entries))
            parent.children[block] = node
        for group, entry in enumerate(entries):
            if node.entries[group] is None and entry is not None:
                node.entries[group] = entry
                self._owners[group][entry] = node
                self._groups[group].index(entry)
        return node

    def insert_tail(self, parent: Node, block: Block, entries: Sequence[int | None]) -> None:
        """Make a block shorter than a page known, unless a longer one begins with it."""
        if not any(common_length(known, block) == len(block) for known in parent.children):
            self.insert(parent, block, entries)

    def _drop_shorter(self, parent: Node, block: Block) -> None:
        for known in list(parent.children.values()):
            if len(known.block) < PAGE_SIZE and block[: len(known.block)] == known.block:
                self.detach(known)

    def forget(self, group: int, entry: int) -> None:
        """The page is taken for something else; blocks that cannot be used without it go too."""
        node = self._owners[group][entry]
        if self._windows[group] is None:
            self.detach(node)
            return
        self._clear(node, (group,))
        while not node.children and node.parent is not None and all(entry is None for entry in node.entries):
            self.detach(node)
            node = node.parent

    def detach(self, node: Node) -> None:
        """Forget a block and everything behind it."""
        if node.parent is not None:
            del node.parent.children[node.block]
        waiting = [node]
        while waiting:
            gone = waiting.pop()
            gone.attached = False
            waiting.extend(gone.children.values())
            gone.children = {}
            self._clear(gone, range(len(gone.entries)))

    def clear(self) -> None:
        """Forget everything."""
        for root in self._roots.values():
            for node in list(root.children.values()):
                self.detach(node)

    def _clear(self, node: Node, groups: Iterable[int]) -> None:
        for group in groups:
            entry = node.entries[group]
            if entry is not None:
                node.entries[group] = None
                del self._owners[group][entry]
                self._groups[group].unindex(entry)

    def nodes(self) -> list[Node]:
        """Every block that is known (for tests and figures)."""
        found: list[Node] = []
        waiting = list(self._roots.values())
        while waiting:
            node = waiting.pop()
            waiting.extend(node.children.values())
            if node.parent is not None:
                found.append(node)
        return found

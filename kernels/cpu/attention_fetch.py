"""Asks for keys and values before attention reads them: the hardware looks ahead too late for a loop this slow.

While a chunk's scores are computed its values are fetched, while its values are summed the keys of what comes next are.
Measured on 570 tokens of three heads of 64, one thread, from memory: 20 instead of 37 us.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .ir_types import Value
from .operation import load_index
from .page_types import LANES
from .softmax import Chunk

if TYPE_CHECKING:
    from .attention_shape import AttentionShape, HeadPages
    from .emit import Emitter

_LINE = 64  # bytes of a cache line
_SECOND_LEVEL = 2  # the first level is too small for a chunk: fetched there, values took 40% longer


@dataclass(frozen=True, slots=True)
class NextKeys:
    """The keys of one KV head that are read after those at hand: of page 0 in both pools, and the entries of pages."""

    recent_keys: Value
    keys: Value
    table: Value
    count: Value  # at least 1

    @classmethod
    def of(cls, e: Emitter, pages: HeadPages, all_pages: Value, chunk: Chunk) -> NextKeys:
        """Those of a chunk; `all_pages` is the address of the row's page table."""
        table = e.add(all_pages, e.mul(e.div(chunk.start, LANES), 4))
        count = e.div(e.add(e.sub(chunk.stop, chunk.start), LANES - 1), LANES)
        return cls(pages.recent_keys, pages.keys, table, count)

    @property
    def all(self) -> list[Value]:
        """As arguments."""
        return [self.recent_keys, self.keys, self.table, self.count]

    def page(self, e: Emitter, shape: AttentionShape, number: Value) -> Value:
        """The address of the keys in a page; of the last one, if there are not so many."""
        entry = load_index(e, self.table, e.min(number, e.sub(self.count, 1)))
        recent = e.add(self.recent_keys, e.mul(shape.recent_page(e, entry), shape.recent.key_head_bytes))
        if shape.sealed is None:
            return recent
        sealed = e.add(self.keys, e.mul(entry, shape.pages.key_head_bytes))
        return e.select(e.compare("<", entry, 0), recent, sealed)

    def fetch(self, e: Emitter, shape: AttentionShape) -> None:
        """Ask for all of them."""

        def page(number: Value, _: list[Value]) -> None:
            address = self.page(e, shape, number)
            e.loop(
                shape.pages.key_head_bytes,
                [],
                lambda offset, _: e.prefetch(address, offset, locality=_SECOND_LEVEL),
                step=_LINE,
            )

        e.loop(self.count, [], page)


def fetch_share(e: Emitter, address: Value, size: int, part: Value, parts: int) -> None:
    """Ask for the `part`-th of `parts` shares of `size` bytes, whole lines each."""
    lines = -(-size // (_LINE * parts))
    start = e.at(address, e.mul(part, lines * _LINE))
    for line in range(lines):
        e.prefetch(start, line * _LINE, locality=_SECOND_LEVEL)

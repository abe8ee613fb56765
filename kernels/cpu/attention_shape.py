"""What all attention kernels share: the shape they are compiled for, and the running state of a softmax."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from .ir_types import F32X16, Value
from .operation import load_index
from .page_types import LANES, PagePoolValue, PageShape, padded
from .quantised_pages import QuantisedPages, recent_shape
from .softmax import CHUNK, merge, merge_factors

if TYPE_CHECKING:
    from .emit import Emitter

SCORE_STRIDE = 4 * CHUNK + 64  # bytes; the odd line keeps rows of scores in different cache sets


class State(IntEnum):
    """Vectors of 16 lanes that a softmax keeps: a lane is a query head here, a row in the prefill kernel."""

    LARGEST = 0
    TOTAL = 1
    CHUNK_LARGEST = 2
    CHUNK_TOTAL = 3
    OLD_FACTOR = 4
    NEW_FACTOR = 5
    SIZE = 6


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What the attention kernels of a layer are compiled for."""

    pages: PageShape
    group: int  # query heads of a KV head
    value_dim: int  # of an attended value (for latent attention the latent rank)
    softcap: float | None
    learned_sinks: bool

    @property
    def sealed(self) -> QuantisedPages | None:
        """The type of the pages that are not float16, in a quantised cache."""
        kind = self.pages.page_type
        return kind if isinstance(kind, QuantisedPages) else None

    @property
    def recent(self) -> PageShape:
        """The pages that rows are written to."""
        return recent_shape(self.pages)

    def recent_page(self, e: Emitter, entry: Value) -> Value:
        """The number of a page that rows are written to: its entry is ~number in a quantised cache."""
        return entry if self.sealed is None else e.bit_xor(entry, -1)

    def recent_keys(self, e: Emitter, keys: Value, table: Value, number: Value) -> Value:
        """Where the keys of the page at place `number` of a table are, from a head's `keys` on."""
        return e.at(keys, e.mul(self.recent_page(e, load_index(e, table, number)), self.recent.key_head_bytes))

    def recent_values(self, e: Emitter, values: Value, table: Value, number: Value) -> Value:
        """Its values, in the same way."""
        return e.at(values, e.mul(self.recent_page(e, load_index(e, table, number)), self.recent.value_head_bytes))

    @property
    def query_stride(self) -> int:
        """Bytes between the query heads of a row."""
        return 4 * padded(self.pages.key_dim)

    @property
    def part_head_bytes(self) -> int:
        """A head of a part: its sums, then the largest score and the total weight."""
        return 4 * (padded(self.value_dim) + LANES)

    @property
    def part_bytes(self) -> int:
        """A part: one chunk of one row, all heads."""
        return self.pages.heads * self.group * self.part_head_bytes

    @property
    def key(self) -> str:
        """Identifies the kernels."""
        return f"{self.pages} {self.group} {self.value_dim} {self.softcap} {self.learned_sinks}"


@dataclass(frozen=True, slots=True)
class HeadPages:
    """Addresses of one KV head in page 0: of the pages that rows are written to, and of quantised ones."""

    recent_keys: Value
    recent_values: Value
    keys: Value
    values: Value
    bases: Value

    @classmethod
    def of(cls, pages: PagePoolValue, recent: PagePoolValue, kv_head: Value) -> HeadPages:
        """Those of a head."""
        e = pages.emitter
        bases = e.add(pages.extra(), e.mul(kv_head, 2))
        return cls(recent.keys(kv_head), recent.values(kv_head), pages.keys(kv_head), pages.values(kv_head), bases)

    @property
    def all(self) -> list[Value]:
        """As arguments."""
        return [self.recent_keys, self.recent_values, self.keys, self.values, self.bases]


def update_state(e: Emitter, state: Value) -> None:
    """Merge the chunk's largest scores and totals into the running ones; leaves the factors for the sums."""

    def load(which: State) -> Value:
        return e.load(F32X16, state, 64 * which)

    largest, old, new = merge_factors(e, load(State.LARGEST), load(State.CHUNK_LARGEST))
    total = merge(e, load(State.TOTAL), load(State.CHUNK_TOTAL), old, new)
    for which, value in (
        (State.LARGEST, largest),
        (State.TOTAL, total),
        (State.OLD_FACTOR, old),
        (State.NEW_FACTOR, new),
    ):
        e.store(value, state, 64 * which)


def store_head(e: Emitter, value_dim: int, sums: Value, factor: Value, target: Value) -> None:
    """A head's sums times a factor; heads are compact in the output, so nothing is written behind the last value."""
    for channel in range(0, value_dim, LANES):
        value = e.mul(e.load(F32X16, sums, 4 * channel), factor)
        if value_dim - channel >= LANES:
            e.store(value, target, 4 * channel)
        else:
            e.store_masked(value, e.lane_mask(LANES, e.integer(value_dim - channel)), target, 4 * channel)

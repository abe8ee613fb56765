"""Scores of one query head against float pages, one page after the other: for kernels that need every score at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .attention_shape import AttentionShape
from .ir_types import F32, F32X16, I32, Value
from .operation import load_index
from .page_types import LANES, PagePoolValue, padded
from .softmax import MASKED, RowPlan, key_numbers, softcap, weights_of

if TYPE_CHECKING:
    from .emit import Emitter

UNROLL = 4  # channels


@dataclass(frozen=True, slots=True)
class RowKeys:
    """The keys that a row sees of one KV head: all up to logical index `last`."""

    e: Emitter
    shape: AttentionShape
    keys: Value  # address of the head's keys in page 0
    table: Value
    last: Value

    @classmethod
    def of(cls, e: Emitter, shape: AttentionShape, pages: PagePoolValue, plan: Value, kv_head: Value) -> RowKeys:
        """Of the row whose RowPlan is at `plan`."""
        return cls(e, shape, pages.keys(kv_head), e.field(plan, RowPlan.PAGES), e.field(plan, RowPlan.LAST))

    @property
    def pages(self) -> Value:
        """How many pages hold them."""
        return self.e.add(self.e.div(self.last, LANES), 1)

    def entry(self, number: Value) -> Value:
        """The page of this number in the table."""
        return load_index(self.e, self.table, number)

    def visible(self, number: Value) -> Value:
        """Which lanes of a page the row sees."""
        e = self.e
        numbers = key_numbers(e, e.mul(number, LANES))
        return e.compare("<=", numbers, e.splat(e.convert(self.last, I32), LANES))

    def products(self, number: Value, queries: Sequence[Value]) -> list[Value]:
        """Each query's products with a page's 16 keys."""
        e, kind = self.e, self.shape.recent.floats
        address = e.at(self.keys, e.mul(self.entry(number), self.shape.recent.key_head_bytes))

        def channels(channel: Value, sums: list[Value]) -> list[Value]:
            for k in range(UNROLL):
                key = kind.load_channel(e, address, e.add(channel, k))
                for index, query in enumerate(queries):
                    q = e.load_splat(F32, LANES, query, e.mul(channel, 4), 4 * k)
                    sums[index] = e.fma(q, key, sums[index])
            return sums

        zeros = [e.constant(F32X16, 0.0)] * len(queries)
        return e.loop(padded(self.shape.pages.key_dim), zeros, channels, step=UNROLL)

    def keep_scores(self, number: Value, products: Value, target: Value) -> Value:
        """A page's products as scores to `target`, 16 floats a page; keys that the row does not see are masked."""
        e = self.e
        score = e.select(self.visible(number), softcap(e, products, self.shape.softcap), MASKED)
        e.store(score, target, e.mul(number, 4 * LANES))
        return score

    def exponents(self, target: Value, largest: Value) -> Value:
        """Scores at `target` to exp2(score - largest lane of `largest`), in place; returns their sum."""
        e = self.e
        spread = e.splat(e.horizontal_max(largest), LANES)

        def page_weights(number: Value, total: list[Value]) -> list[Value]:
            offset = e.mul(number, 4 * LANES)
            weights = weights_of(e, e.load(F32X16, target, offset), spread)
            e.store(weights, target, offset)
            return [e.add(total[0], weights)]

        return e.horizontal_sum(e.loop(self.pages, [e.constant(F32X16, 0.0)], page_weights)[0])

"""What the attention kernels do with quantised pages; the arithmetic is the same for one row and for sixteen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from localllm.kernels.kv_quantise import value_groups

from .attention_shape import SCORE_STRIDE, AttentionShape
from .ir_types import F32, F32X16, Value
from .operation import load_index
from .page_types import LANES, padded
from .page_walk import walk_runs
from .quantised_pages import QuantisedPages

if TYPE_CHECKING:
    from .emit import Emitter


class SealedPages:
    """Reads the quantised pages of one KV head for up to `rows` rows of queries.

    `keys`, `values` and `bases` are those of page 0.
    """

    def __init__(self, e: Emitter, shape: AttentionShape, kind: QuantisedPages, rows: int) -> None:
        self.e, self.shape, self.kind = e, shape, kind
        self.key_dim, self.value_dim = shape.pages.key_dim, shape.pages.value_dim
        self.width = padded(self.key_dim)
        self.stride = 4 * self.width + 64  # an odd number of lines, as for the queries of the prefill kernel
        self.factors = e.scratch(8 * self.width)
        self.scaled = e.scratch(rows * self.stride)
        self.weights = e.scratch(rows * SCORE_STRIDE)
        self.unroll = max(2, kind.packed)

    def place(self, keys: Value, values: Value, bases: Value) -> None:
        """The KV head to read."""
        self.keys, self.values, self.bases = keys, values, bases

    def offset(self, table: Value, number: Value) -> Value:
        """Of a page from page 0."""
        return self.e.mul(load_index(self.e, table, number), self.shape.pages.page_bytes)

    def load_factors(self, page: Value) -> None:
        """Steps and zeros of a page's keys to scratch; `page` is its offset."""
        e = self.e
        self.kind.store_factors(e, e.at(self.keys, page), e.at(self.bases, page), self.key_dim, self.factors)

    def scale_query(self, query: Value, row: Value | int) -> Value:
        """The query times the steps to the row's scratch; returns what the zeros add to its scores."""
        return self.kind.scale_query(self.e, query, self.factors, self.key_dim, self.query(row))

    def query(self, row: Value | int) -> Value:
        """Where the row's scaled query is."""
        return self.e.at(self.scaled, self.e.mul(self.e.integer(row), self.stride))

    def sums(self, pages: Sequence[Value], queries: Sequence[Value]) -> list[Value]:
        """Of code times scaled query, for each page offset and then for each of its scaled queries.

        `queries` has as many for every page: those of the first page, of the second, ...
        """
        e, each = self.e, len(queries) // len(pages)

        def channels(channel: Value, sums: list[Value]) -> list[Value]:
            for k in range(0, self.unroll, self.kind.packed):
                at = e.add(channel, k)
                for i, page in enumerate(pages):
                    codes = self.kind.load_channels(e, e.at(self.keys, page), at)
                    for j, code in enumerate(codes):
                        for row in range(i * each, (i + 1) * each):
                            q = e.load_splat(F32, LANES, queries[row], e.mul(channel, 4), 4 * (k + j))
                            sums[row] = e.fma(q, code, sums[row])
            return sums

        return e.loop(self.width, [e.constant(F32X16, 0.0)] * len(queries), channels, step=self.unroll)

    def groups(self) -> list[range]:
        """The first channels of the registers of every group of values that share a step."""
        width = padded(self.value_dim)
        groups = value_groups(self.value_dim)
        return [range(group.start, width if group is groups[-1] else group.stop, LANES) for group in groups]

    def scale_weights(
        self, group: int, table: Value, first: Value, stop: Value, weights: Sequence[Value], targets: Sequence[Value]
    ) -> list[Value]:
        """Weights times the steps of their values, for one group of channels; those of float16 pages as they are.

        Returns what the zeros add to each channel's sum, for each row of weights.
        """
        e = self.e

        def recent(start: Value, stop: Value, totals: list[Value]) -> Sequence[Value]:
            def page(number: Value, totals: list[Value]) -> list[Value]:
                offset = e.mul(number, 4 * LANES)
                for source, target in zip(weights, targets, strict=True):
                    e.store(e.load(F32X16, source, offset), target, offset)
                return totals

            return e.loop(stop, totals, page, start=start)

        def sealed(start: Value, stop: Value, totals: list[Value]) -> Sequence[Value]:
            def page(number: Value, totals: list[Value]) -> list[Value]:
                offset = e.mul(number, 4 * LANES)
                values = e.at(self.values, self.offset(table, number))
                steps, zeros = self.kind.value_factors(e, values, self.value_dim, group)
                for row, (source, target) in enumerate(zip(weights, targets, strict=True)):
                    scaled = e.mul(e.load(F32X16, source, offset), steps)
                    e.store(scaled, target, offset)
                    totals[row] = e.fma(scaled, zeros, totals[row])
                return totals

            return e.loop(stop, totals, page, start=start)

        zeros = [e.constant(F32X16, 0.0)] * len(weights)
        totals = walk_runs(e, table, first, stop, zeros, recent, sealed)
        return [e.mul(e.horizontal_sum(total), self.kind.quantisation.value_unit) for total in totals]

    def add_values(
        self, table: Value, number: Value, channels: Sequence[Value | int], weights: Sequence[Value], sums: list[Value]
    ) -> list[Value]:
        """Add a page's weighted codes of these channels; `sums` has all channels of the first row, then of the next.

        `weights` are each row's scaled weights of this page.
        """
        e, packed = self.e, self.kind.packed
        values = e.at(self.values, self.offset(table, number))
        unroll = max(2, packed)

        def slots(slot: Value, sums: list[Value]) -> list[Value]:
            for k in range(0, unroll, packed):
                loaded = [self.kind.load_slots(e, values, self.value_dim, e.add(slot, k), c) for c in channels]
                for j in range(packed):
                    for row, own in enumerate(weights):
                        weight = e.load_splat(F32, LANES, own, e.mul(slot, 4), 4 * (k + j))
                        for i, codes in enumerate(loaded):
                            place = row * len(channels) + i
                            sums[place] = e.fma(weight, codes[j], sums[place])
            return sums

        return e.loop(LANES, sums, slots, step=unroll)

"""What the attention kernels do with quantised pages; the arithmetic is the same for one row and for sixteen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from localllm.kernels.kv_quantise import value_groups

from .attention_shape import SCORE_STRIDE, AttentionShape
from .ir_types import F32, F32X16, I32X16, Value
from .operation import load_index
from .page_types import LANES, padded
from .page_walk import walk_runs
from .pair_dot import emit_pair_dot, largest_of, multiplier_limit, round_to_pairs
from .quantised_pages import QuantisedPages
from .softmax import CHUNK

if TYPE_CHECKING:
    from .emit import Emitter

PAIR_STRIDE = 2 * CHUNK + 64  # bytes between the integer weights of rows
_UNROLL = 2  # vectors of keys: there are at least two for every 16 channels


class SealedPages:
    """Reads the quantised pages of one KV head for up to `rows` rows of queries, `pages` of them at once.

    `keys`, `values` and `bases` are those of page 0.
    """

    def __init__(self, e: Emitter, shape: AttentionShape, kind: QuantisedPages, rows: int, pages: int = 1) -> None:
        self.e, self.shape, self.kind = e, shape, kind
        self.key_dim, self.value_dim = shape.pages.key_dim, shape.pages.value_dim
        self.width = padded(self.key_dim)
        self.stride = 4 * self.width + 64  # an odd number of lines, as for the queries of the prefill kernel
        self.query_stride = 2 * self.width + 64
        self.factors = e.scratch(8 * self.width)
        self.multipliers = e.scratch(rows * self.stride)
        self.units = e.scratch(4 * rows)
        self.queries = e.scratch(rows * pages * self.query_stride)
        self.weights = e.scratch(rows * SCORE_STRIDE)
        self.pairs = e.scratch(rows * PAIR_STRIDE)

    def place(self, keys: Value, values: Value, bases: Value) -> None:
        """The KV head to read."""
        self.keys, self.values, self.bases = keys, values, bases

    def keys_of(self, page: Value) -> Value:
        """Where the keys of a page are."""
        return self.e.at(self.keys, self.e.mul(page, self.shape.pages.key_head_bytes))

    def values_of(self, page: Value) -> Value:
        """Where the values of a page are."""
        return self.e.at(self.values, self.e.mul(page, self.shape.pages.value_head_bytes))

    def take_query(self, query: Value, row: Value | int) -> None:
        """Prepare a row's query for all pages of a chunk."""
        e = self.e
        target = e.at(self.multipliers, e.mul(e.integer(row), self.stride))
        unit = self.kind.key_multipliers(e, query, self.key_dim, target)
        e.store(unit, self.units, e.mul(e.integer(row), 4))

    def load_factors(self, page: Value) -> Value:
        """Steps and zeros of a page's keys to scratch; returns the unit of these steps."""
        e = self.e
        self.kind.store_factors(e, self.keys_of(page), self.key_dim, self.factors)
        return self.kind.base_step(e, e.at(self.bases, e.mul(page, self.shape.pages.extra_bytes)))

    def scale_query(self, row: Value | int, place: Value | int) -> Value:
        """The row's query times the steps to a place for the sums; returns what the zeros add to these."""
        e = self.e
        multipliers = e.at(self.multipliers, e.mul(e.integer(row), self.stride))
        return self.kind.scale_query(e, multipliers, self.factors, self.key_dim, self.query(place))

    def query(self, place: Value | int) -> Value:
        """Where a scaled query is."""
        return self.e.at(self.queries, self.e.mul(self.e.integer(place), self.query_stride))

    def score(self, total: Value, zeros: Value, base: Value, row: Value | int) -> Value:
        """The scores of a row, from the sums, what the zeros add to them, and the unit of the page's steps."""
        e = self.e
        unit = e.mul(base, e.load(F32, self.units, e.mul(e.integer(row), 4)))
        return e.mul(e.add(e.convert(total, F32), e.splat(zeros, LANES)), e.splat(unit, LANES))

    def sums(
        self, pages: Sequence[Value], queries: Sequence[Value], fetch: Callable[[Value, int], None] | None = None
    ) -> list[Value]:
        """Of code times scaled query, for each page and then for each of its scaled queries.

        `queries` has as many for every page: those of the first page, of the second, ... `fetch` is called for every
        step of the loop with the step and their number, to ask for what is read next.
        """
        e, each, packed = self.e, len(queries) // len(pages), self.kind.packed
        addresses, count = [self.keys_of(page) for page in pages], self.kind.key_vectors(self.key_dim)

        def vectors(number: Value, sums: list[Value]) -> list[Value]:
            if fetch is not None:
                fetch(e.div(number, _UNROLL), count // _UNROLL)
            for k in range(_UNROLL):
                at = e.add(number, k)
                for i, address in enumerate(addresses):
                    for field, codes in enumerate(self.kind.load_keys(e, address, at)):
                        for row in range(i * each, (i + 1) * each):
                            multipliers = e.at(queries[row], e.mul(at, 4 * packed), 4 * field)
                            sums[row] = emit_pair_dot(e, sums[row], codes, multipliers)
            return sums

        return e.loop(count, [e.constant(I32X16, 0)] * len(queries), vectors, step=_UNROLL)

    def groups(self) -> list[range]:
        """The first channels of the registers of every group of values that share a step."""
        width = padded(self.value_dim)
        groups = value_groups(self.value_dim)
        return [range(group.start, width if group is groups[-1] else group.stop, LANES) for group in groups]

    def scale_weights(
        self, group: int, table: Value, first: Value, stop: Value, weights: Value, row: Value | int
    ) -> tuple[Value, Value]:
        """A row's weights times the steps of their values, for one group of channels, as integers to `pairs_of(row)`.

        Returns what the zeros add to each channel's sum, and the unit of the sums.
        """
        e = self.e
        scaled = e.at(self.weights, e.mul(e.integer(row), SCORE_STRIDE))
        pairs = self.pairs_of(row)

        def factors(number: Value) -> tuple[Value, Value]:
            values = self.values_of(load_index(e, table, number))
            return self.kind.value_factors(e, values, self.value_dim, group)

        def scale(number: Value, largest: list[Value]) -> list[Value]:
            offset = e.mul(number, 4 * LANES)
            value = e.mul(e.load(F32X16, weights, offset), factors(number)[0])
            e.store(value, scaled, offset)
            return [e.max(largest[0], value)]

        zero = e.constant(F32X16, 0.0)
        largest = largest_of(e, self._sealed_only(table, first, stop, [zero], scale)[0])
        limit = float(multiplier_limit(self.kind.quantisation.largest, CHUNK))
        factor = e.splat(e.div(limit, largest), LANES)

        def write(number: Value, total: list[Value]) -> list[Value]:
            integers, rounded = round_to_pairs(e, e.mul(e.load(F32X16, scaled, e.mul(number, 4 * LANES)), factor))
            e.store(integers, pairs, e.mul(number, 2 * LANES))
            return [e.fma(rounded, factors(number)[1], total[0])]

        total = self._sealed_only(table, first, stop, [zero], write)[0]
        zeros = e.mul(e.horizontal_sum(total), self.kind.quantisation.value_unit)
        return zeros, e.mul(largest, 1.0 / limit)

    def value_sum(self, total: Value, zeros: Value, unit: Value) -> Value:
        """16 channels of weighted values, from their sum and what `scale_weights` gave."""
        e = self.e
        return e.mul(e.add(e.convert(total, F32), e.splat(zeros, LANES)), e.splat(unit, LANES))

    def pairs_of(self, row: Value | int) -> Value:
        """Where a row's integer weights are."""
        return self.e.at(self.pairs, self.e.mul(self.e.integer(row), PAIR_STRIDE))

    def weighted_values(
        self,
        table: Value,
        first: Value,
        stop: Value,
        channels: Sequence[Value | int],
        rows: Sequence[Value],
        fetch: Callable[[Value, Value, int], None] | None = None,
    ) -> list[Value]:
        """Of weight times code: all channels of the first row, then of the next; `rows` as `pairs_of` gives them.

        `fetch` is called with a page, a step, and the number of steps that a page has.
        """
        e, packed, count = self.e, self.kind.packed, self.kind.value_vectors
        unroll = min(2, count)

        def page(number: Value, sums: list[Value]) -> list[Value]:
            values = self.values_of(load_index(e, table, number))
            own = [e.at(row, e.mul(number, 2 * LANES)) for row in rows]

            def vectors(vector: Value, sums: list[Value]) -> list[Value]:
                if fetch is not None:
                    fetch(number, e.div(vector, unroll), count // unroll)
                for k in range(unroll):
                    at = e.add(vector, k)
                    loaded = [self.kind.load_values(e, values, self.value_dim, at, channel) for channel in channels]
                    for row, pairs in enumerate(own):
                        for field in range(packed):
                            multipliers = e.at(pairs, e.mul(at, 4 * packed), 4 * field)
                            for i, codes in enumerate(loaded):
                                place = row * len(channels) + i
                                sums[place] = emit_pair_dot(e, sums[place], codes[field], multipliers)
                return sums

            return e.loop(count, sums, vectors, step=unroll)

        zeros = [e.constant(I32X16, 0)] * (len(channels) * len(rows))
        return self._sealed_only(table, first, stop, zeros, page)

    def _sealed_only(
        self,
        table: Value,
        first: Value,
        stop: Value,
        carried: Sequence[Value],
        page: Callable[[Value, list[Value]], list[Value]],
    ) -> list[Value]:
        """Call `page` for the quantised ones of the pages."""
        e = self.e

        def sealed(start: Value, stop: Value, values: list[Value]) -> list[Value]:
            return e.loop(stop, values, page, start=start)

        return walk_runs(e, table, first, stop, carried, lambda _, __, values: values, sealed)

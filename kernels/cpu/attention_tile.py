"""Attention of up to 16 neighbouring rows of a sequence at once: each load of keys or values serves a block of them.

The arithmetic of a row is that of `attention`, operation by operation; keys that a row may not see weigh exactly zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING

from .attention_sealed import SealedPages
from .attention_shape import SCORE_STRIDE, AttentionShape, HeadPages, State, store_head, update_state
from .ir_types import F32, F32X16, I8, I8X16, I32, I64, Value, vector
from .operation import load_index
from .page_types import LANES, padded
from .page_walk import walk_runs
from .softmax import LOG2_E, MASKED, Chunk, RowPlan, chunk_of, key_numbers, merge, softcap, weights_of

if TYPE_CHECKING:
    from .emit import Emitter

TILE_ROWS = 16


class Tile(IntEnum):
    """Words of a tile: int64, four to a tile."""

    FIRST_ROW = 0
    ROW_COUNT = 1
    FIRST_CHUNK = 2
    LAST_CHUNK = 3
    SIZE = 4


class TileAttention:
    """Emits the attention of one head of one tile, `block` rows at a time: their sums are in registers together."""

    def __init__(self, e: Emitter, shape: AttentionShape, block: int, *arguments: Value) -> None:
        self.e, self.shape, self.block = e, shape, block
        self.together = max(1, e.isa.token_block // block)  # pages or channels, so that few rows have enough sums
        query, query_stride, sink_query, sink_query_stride, plan, tile, *pages = arguments
        self.sources = (query, query_stride), (sink_query, sink_query_stride)
        self.plan, self.tile = plan, tile
        *addresses, self.output, self.output_stride, self.learned_sink = pages
        self.pages = HeadPages(*addresses)
        self.keys, self.values = self.pages.recent_keys, self.pages.recent_values
        self.key_width, self.value_width = padded(shape.pages.key_dim), padded(shape.value_dim)
        # An odd number of lines between rows, so that the 16 rows of a column lie in different cache sets.
        self.query_stride = 4 * self.key_width + 64
        self.queries = [e.scratch(TILE_ROWS * self.query_stride) for _ in range(2)]
        self.scores = e.scratch(TILE_ROWS * SCORE_STRIDE)
        self.sums = e.scratch(TILE_ROWS * 4 * self.value_width)
        self.state = e.scratch(64 * State.SIZE)
        self.last, self.low, self.low_sink = (e.scratch(4 * TILE_ROWS) for _ in range(3))
        self.sealed = None if shape.sealed is None else SealedPages(e, shape, shape.sealed, TILE_ROWS)
        self.by_zeros, self.value_units = e.scratch(4 * TILE_ROWS), e.scratch(4 * TILE_ROWS)
        self.mask = e.scratch(LANES)
        if self.sealed is not None:
            self.sealed.place(self.pages.keys, self.pages.values, self.pages.bases)
        self.own_rows = e.field(self.tile, Tile.ROW_COUNT)
        self.rows = e.mul(e.div(e.add(self.own_rows, block - 1), block), block)  # those that are computed

    def emit(self) -> None:
        """One head of one tile."""
        e, rows, plan, tile = self.e, self.own_rows, self.plan, self.tile
        self.tree_start = e.select(self._is_tree(plan), e.field(plan, RowPlan.TREE_START), 1 << 62)
        final_plan = e.add(plan, e.mul(e.sub(rows, 1), 8 * RowPlan.SIZE))
        self._copy_rows()
        largest, total = e.constant(F32X16, MASKED), e.constant(F32X16, 0.0)
        if self.shape.learned_sinks:
            largest = e.mul(e.load_splat(F32, LANES, self.learned_sink), LOG2_E)
            total = e.constant(F32X16, 1.0)
        e.store(largest, self.state, 64 * State.LARGEST)
        e.store(total, self.state, 64 * State.TOTAL)
        zero = e.constant(F32X16, 0.0)
        e.loop(e.mul(self.rows, self.value_width), [], lambda i, _: e.store(zero, self.sums, e.mul(i, 4)), step=LANES)

        def chunk(index: Value, _: list[Value]) -> None:
            own, final = chunk_of(e, plan, index), chunk_of(e, final_plan, index)
            self._chunk(Chunk(own.start, final.stop, own.low, own.is_sink), final.low)

        e.loop(e.field(tile, Tile.LAST_CHUNK), [], chunk, start=e.field(tile, Tile.FIRST_CHUNK))

        def finish(row: Value, _: list[Value]) -> None:
            inverse = e.splat(e.div(1.0, e.load(F32, self._state(State.TOTAL, row))), LANES)
            store_head(
                e, self.shape.value_dim, self._sum(row, 0), inverse, e.at(self.output, e.mul(row, self.output_stride))
            )

        e.loop(rows, [], finish)

    def _copy_rows(self) -> None:
        """Queries close together, for short addresses; rows beyond the count repeat the last one."""
        e, plan = self.e, self.plan

        def row_of(row: Value, _: list[Value]) -> None:
            number = e.min(row, e.sub(self.own_rows, 1))
            has_sinks = e.compare(">", e.field(plan, RowPlan.SINKS), 0)
            widths = (e.integer(self.key_width), e.select(has_sinks, e.integer(self.key_width), 0))
            for (source, stride), target, width in zip(self.sources, self.queries, widths, strict=True):
                first, own = e.at(source, e.mul(number, stride)), e.at(target, e.mul(row, self.query_stride))

                def copy(channel: Value, _: list[Value], source: Value = first, target: Value = own) -> None:
                    e.store(e.load(F32X16, source, e.mul(channel, 4)), target, e.mul(channel, 4))

                e.loop(width, [], copy, step=LANES)
            own = e.add(plan, e.mul(number, 8 * RowPlan.SIZE))
            for field, target in (
                (RowPlan.LAST, self.last),
                (RowPlan.LOW, self.low),
                (RowPlan.LOW_SINK, self.low_sink),
            ):
                e.store(e.convert(e.field(own, field), I32), target, e.mul(row, 4))

        e.loop(self.rows, [], row_of)

    def _chunk(self, chunk: Chunk, highest_low: Value) -> None:
        e = self.e
        first_page = e.div(e.max(e.sub(chunk.low, chunk.start), 0), LANES)
        pages = e.div(e.add(e.sub(chunk.stop, chunk.start), LANES - 1), LANES)
        table = e.at(e.field(self.plan, RowPlan.PAGES), e.mul(e.div(chunk.start, LANES), 4))
        self._scores(chunk, highest_low, table, first_page, pages)
        e.loop(self.rows, [], lambda row, _: self._weights(row, first_page, pages))
        update_state(e, self.state)
        self._add_values(table, first_page, pages)

    def _scores(self, chunk: Chunk, highest_low: Value, table: Value, first_page: Value, pages: Value) -> None:
        e, kind, sealed = self.e, self.shape.recent.floats, self.sealed
        query = e.select(chunk.is_sink, self.queries[1], self.queries[0])
        lows = e.select(chunk.is_sink, self.low_sink, self.low)

        def recent_run(first: Value, stop: Value, _: Sequence[Value]) -> Sequence[Value]:
            def page_scores(page: Value, _: list[Value]) -> None:
                numbers = [e.min(e.add(page, i), e.sub(stop, 1)) if i else page for i in range(self.together)]
                addresses = [self.shape.recent_keys(self.e, self.keys, table, number) for number in numbers]

                def block(row: Value, _: list[Value]) -> None:
                    base = e.at(query, e.mul(row, self.query_stride))

                    def channels(channel: Value, sums: list[Value]) -> list[Value]:
                        for k in range(2):
                            keys = [kind.load_channel(e, address, e.add(channel, k)) for address in addresses]
                            for t in range(self.block):
                                q = e.load_splat(F32, LANES, base, e.mul(channel, 4), t * self.query_stride + 4 * k)
                                for i, key in enumerate(keys):
                                    at = i * self.block + t
                                    sums[at] = e.fma(q, key, sums[at])
                        return sums

                    zeros = [e.constant(F32X16, 0.0)] * (self.block * self.together)
                    sums = e.loop(self.key_width, zeros, channels, step=2)
                    for i, number in enumerate(numbers):
                        own = sums[i * self.block : (i + 1) * self.block]
                        self._keep_scores(chunk, highest_low, lows, number, row, own)

                e.loop(self.rows, [], block, step=self.block)

            return e.loop(stop, [], page_scores, start=first, step=self.together)

        if sealed is None:
            recent_run(first_page, pages, [])
            return
        e.loop(self.rows, [], lambda row, _: sealed.take_query(e.at(query, e.mul(row, self.query_stride)), row))

        def sealed_run(first: Value, stop: Value, _: Sequence[Value]) -> Sequence[Value]:
            def page_scores(page: Value, _: list[Value]) -> None:
                sealed_page = load_index(e, table, page)
                base = sealed.load_factors(sealed_page)

                def scale(row: Value, _: list[Value]) -> None:
                    e.store(sealed.scale_query(row, row), self.by_zeros, e.mul(row, 4))

                e.loop(self.rows, [], scale)

                def block(row: Value, _: list[Value]) -> None:
                    sums = sealed.sums([sealed_page], [sealed.query(e.add(row, t)) for t in range(self.block)])
                    for t in range(self.block):
                        at = e.add(row, t)
                        zeros = e.load(F32, self.by_zeros, e.mul(at, 4))
                        sums[t] = sealed.score(sums[t], zeros, base, at)
                    self._keep_scores(chunk, highest_low, lows, page, row, sums)

                e.loop(self.rows, [], block, step=self.block)

            return e.loop(stop, [], page_scores, start=first)

        walk_runs(e, table, first_page, pages, [], recent_run, sealed_run)

    def _keep_scores(
        self, chunk: Chunk, highest_low: Value, lows: Value, page: Value, row: Value, sums: list[Value]
    ) -> None:
        """Finish and store one page's scores of some rows, masked where a row must not see a key."""
        e = self.e
        least_last = e.min(e.convert(e.load(I32, self.last), I64), e.sub(self.tree_start, 1))
        first_key = e.add(chunk.start, e.mul(page, LANES))
        seen_by_all = e.bit_and(
            e.compare("<=", e.add(first_key, LANES - 1), least_last), e.compare(">=", first_key, highest_low)
        )
        numbers = key_numbers(e, first_key)
        target = e.at(self.scores, e.mul(row, SCORE_STRIDE), e.mul(page, 4 * LANES))
        scores = [softcap(e, s, self.shape.softcap) for s in sums]
        with e.either(seen_by_all) as (then, otherwise):
            with then:
                for t, score in enumerate(scores):
                    e.store(score, target, t * SCORE_STRIDE)
            with otherwise:
                for t, score in enumerate(scores):
                    last, low = (e.load_splat(I32, LANES, array, e.mul(row, 4), 4 * t) for array in (self.last, lows))
                    visible = e.bit_and(e.compare("<=", numbers, last), e.compare(">=", numbers, low))
                    visible = e.bit_and(visible, self._in_tree(first_key, e.add(row, t)))
                    e.store(e.select(visible, score, MASKED), target, t * SCORE_STRIDE)

    def _is_tree(self, plan: Value) -> Value:
        return self.e.compare("!=", self.e.field(plan, RowPlan.TREE), 0)

    def _in_tree(self, first_key: Value, row: Value) -> Value:
        """Which of a page's keys a row of a tree may see: all of those before the tree's first page."""
        e = self.e
        e.store(e.constant(I8X16, 1), self.mask)
        with e.when(e.compare(">=", first_key, self.tree_start)):
            number = e.min(row, e.sub(self.own_rows, 1))
            tree = e.field(e.add(self.plan, e.mul(number, 8 * RowPlan.SIZE)), RowPlan.TREE)
            e.store(e.load(I8X16, tree, e.sub(first_key, self.tree_start)), self.mask)
        return e.compare("!=", e.load(vector(I8, LANES), self.mask), 0)

    def _weights(self, row: Value, first_page: Value, pages: Value) -> None:
        e = self.e
        base = e.at(self.scores, e.mul(row, SCORE_STRIDE))

        def largest_of(page: Value, largest: list[Value]) -> list[Value]:
            return [e.max(largest[0], e.load(F32X16, base, e.mul(page, 4 * LANES)))]

        lanes = e.loop(pages, [e.constant(F32X16, MASKED)], largest_of, start=first_page)[0]
        largest = e.horizontal_max(lanes)
        spread = e.splat(largest, LANES)

        def page_weights(page: Value, total: list[Value]) -> list[Value]:
            offset = e.mul(page, 4 * LANES)
            weights = weights_of(e, e.load(F32X16, base, offset), spread)
            e.store(weights, base, offset)
            return [e.add(total[0], weights)]

        total = e.loop(pages, [e.constant(F32X16, 0.0)], page_weights, start=first_page)[0]
        e.store(largest, self._state(State.CHUNK_LARGEST, row))
        e.store(e.horizontal_sum(total), self._state(State.CHUNK_TOTAL, row))

    def _add_values(self, table: Value, first_page: Value, pages: Value) -> None:
        e, sealed = self.e, self.sealed
        if sealed is None:
            self._add_channels(table, first_page, pages, (0, self.value_width))
            return
        for group, members in enumerate(sealed.groups()):

            def scale(row: Value, _: list[Value], group: int = group) -> None:
                weights = e.at(self.scores, e.mul(row, SCORE_STRIDE))
                zeros, unit = sealed.scale_weights(group, table, first_page, pages, weights, row)
                e.store(zeros, self.by_zeros, e.mul(row, 4))
                e.store(unit, self.value_units, e.mul(row, 4))

            e.loop(self.rows, [], scale)
            self._add_channels(table, first_page, pages, (members.start, members[-1] + LANES))

    def _add_channels(self, table: Value, first_page: Value, pages: Value, channels: tuple[int, int]) -> None:
        """Add the weighted values of the chunk to the sums of some channels [first, stop)."""
        e = self.e
        together = next(n for n in range(self.together, 0, -1) if (channels[1] - channels[0]) % (n * LANES) == 0)

        def block(row: Value, _: list[Value]) -> None:
            def some(channel: Value, _: list[Value]) -> None:
                sums = self._sum_values(table, first_page, pages, row, channel, together)
                for t in range(self.block):
                    at = e.add(row, t)
                    factors = [self._state(which, at) for which in (State.OLD_FACTOR, State.NEW_FACTOR)]
                    old, new = (e.load_splat(F32, LANES, factor) for factor in factors)
                    for i in range(together):
                        total = sums[t * together + i]
                        target = self._sum(at, e.add(channel, i * LANES))
                        e.store(merge(e, e.load(F32X16, target), total, old, new), target)

            e.loop(channels[1], [], some, start=channels[0], step=together * LANES)

        e.loop(self.rows, [], block, step=self.block)

    def _sum_values(
        self, table: Value, first_page: Value, pages: Value, row: Value, channel: Value, together: int
    ) -> list[Value]:
        """Weighted values over all pages for the block of rows from `row` on: `together` vectors of 16 channels of the
        first row, then of the next."""
        e, shape, kind, sealed = self.e, self.shape, self.shape.recent.floats, self.sealed
        base = e.at(self.scores, e.mul(row, SCORE_STRIDE))
        channels = [e.add(channel, i * LANES) for i in range(together)]

        def recent_run(start: Value, stop: Value, sums: list[Value]) -> list[Value]:
            def page_values(page: Value, sums: list[Value]) -> list[Value]:
                address = self.shape.recent_values(self.e, self.values, table, page)
                weights = e.at(base, e.mul(page, 4 * LANES))

                def slots(slot: Value, sums: list[Value]) -> list[Value]:
                    for k in range(2):
                        at = e.add(slot, k)
                        values = [kind.load_value(e, address, shape.pages.value_dim, at, c) for c in channels]
                        for t in range(self.block):
                            weight = e.load_splat(F32, LANES, weights, e.mul(slot, 4), t * SCORE_STRIDE + 4 * k)
                            for i, value in enumerate(values):
                                place = t * together + i
                                sums[place] = e.fma(weight, value, sums[place])
                    return sums

                return e.loop(LANES, sums, slots, step=2)

            return e.loop(stop, sums, page_values, start=start)

        zeros = [e.constant(F32X16, 0.0)] * (self.block * together)
        if sealed is None:
            return recent_run(first_page, pages, zeros)

        rows = [e.add(row, t) for t in range(self.block)]
        integers = sealed.weighted_values(table, first_page, pages, channels, [sealed.pairs_of(own) for own in rows])
        sums: list[Value] = []
        for t, own in enumerate(rows):
            by_zeros, unit = (e.load(F32, array, e.mul(own, 4)) for array in (self.by_zeros, self.value_units))
            sums.extend(sealed.value_sum(integers[t * together + i], by_zeros, unit) for i in range(together))
        return walk_runs(e, table, first_page, pages, sums, recent_run, lambda _, __, values: values)

    def _state(self, which: State, row: Value) -> Value:
        return self.e.at(self.state, 64 * which, self.e.mul(row, 4))

    def _sum(self, row: Value, channel: Value | int) -> Value:
        e = self.e
        return e.at(self.sums, e.mul(row, 4 * self.value_width), e.mul(e.integer(channel), 4))

"""Attention of up to 16 neighbouring rows of a sequence at once: each load of keys or values serves all of them.

The arithmetic of a row is that of `attention`, operation by operation; keys that a row may not see weigh exactly zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING

from .attention_sealed import SealedPages
from .attention_shape import SCORE_STRIDE, AttentionShape, HeadPages, State, store_head, update_state
from .compile import KernelSource
from .ir_types import F32, F32X16, I32, I64, Value
from .operation import Arguments, Kind, Operation, Rows, load_index, portion
from .page_types import LANES, padded
from .page_walk import walk_runs
from .softmax import LOG2_E, MASKED, Chunk, RowPlan, chunk_of, key_numbers, merge, softcap, weights_of
from .step_state import GroupWord, group_word

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


def attention_prefill(
    shape: AttentionShape,
    *,
    queries: Rows,
    sink_queries: Rows,
    output: Rows,
    pages: int,
    recent: int,
    group: int,
    learned_sinks: int,
    barrier: bool = True,
) -> Operation:
    """Attend the tiles of a cache group; arguments as for `attention`. Not for latent attention."""
    arguments = (
        *(*queries.fields, *sink_queries.fields, *output.fields),
        *(pages, recent, 8 * group_word(group, GroupWord.ROWS), learned_sinks),
    )
    source = KernelSource("attention_prefill", shape.key, lambda e, r, s, t: _emit(e, r, s, t, shape))
    return Operation(source, arguments, Kind.ATTENTION, barrier)


def _emit(e: Emitter, record: Value, step: Value, thread: Value, shape: AttentionShape) -> None:
    arguments = Arguments(e, record, thread)
    queries, sink_queries, output = arguments.rows(), arguments.rows(), arguments.rows()
    pages, recent, group_offset, learned_sinks = arguments.integers(4)
    group = e.add(step, group_offset)
    plans, tiles, count = (
        e.field(group, GroupWord.ROWS),
        e.field(group, GroupWord.TILES),
        e.field(group, GroupWord.TILE_COUNT),
    )
    heads = shape.pages.heads * shape.group
    start, stop = portion(e, e.mul(count, heads), step, thread)
    attend = _TileAttention(e, shape)

    def unit(number: Value, _: list[Value]) -> None:
        # Neighbouring units are heads of one tile, and tiles of a prefill grow: thread shares of the tail are fair
        # because every thread takes every `threads`-th tile (the host orders them so).
        head, tile = e.remainder(number, heads), e.at(tiles, e.mul(e.div(number, heads), 8 * Tile.SIZE))
        kv_head, row = e.div(head, shape.group), e.field(tile, Tile.FIRST_ROW)
        offset = e.mul(head, shape.query_stride)
        attend.emit(
            query=e.at(queries.row(row), offset),
            sink_query=e.at(sink_queries.row(row), offset),
            query_strides=(queries.stride, sink_queries.stride),
            plan=e.add(plans, e.mul(row, 8 * RowPlan.SIZE)),
            tile=tile,
            pages=HeadPages.of(e, shape, pages, recent, kv_head),
            output=e.at(output.row(row), e.mul(head, 4 * shape.value_dim)),
            output_stride=output.stride,
            learned_sink=e.at(learned_sinks, e.mul(head, 4)),
        )

    e.loop(stop, [], unit, start=start)


class _TileAttention:
    """Emits the attention of one head of one tile; its scratch is shared by all units of a thread."""

    def __init__(self, e: Emitter, shape: AttentionShape) -> None:
        self.e, self.shape = e, shape
        self.key_width, self.value_width = padded(shape.pages.key_dim), padded(shape.value_dim)
        # An odd number of lines between rows, so that the 16 rows of a column lie in different cache sets.
        self.query_stride = 4 * self.key_width + 64
        self.queries = [e.scratch(TILE_ROWS * self.query_stride) for _ in range(2)]
        self.scores = e.scratch(TILE_ROWS * SCORE_STRIDE)
        self.sums = e.scratch(TILE_ROWS * 4 * self.value_width)
        self.state = e.scratch(64 * State.SIZE)
        self.last, self.low, self.low_sink = (e.scratch(4 * TILE_ROWS) for _ in range(3))
        self.block = TILE_ROWS if e.isa.token_block >= 8 else 4  # rows whose sums are in registers together
        self.sealed = None if shape.sealed is None else SealedPages(e, shape, shape.sealed, TILE_ROWS)
        self.by_zeros = e.scratch(4 * TILE_ROWS)

    def emit(
        self,
        *,
        query: Value,
        sink_query: Value,
        query_strides: tuple[Value, Value],
        plan: Value,
        tile: Value,
        pages: HeadPages,
        output: Value,
        output_stride: Value,
        learned_sink: Value,
    ) -> None:
        """One head of one tile."""
        e = self.e
        self.keys, self.values = pages.recent_keys, pages.recent_values
        if self.sealed is not None:
            self.sealed.place(pages.keys, pages.values, pages.bases)
        rows = e.field(tile, Tile.ROW_COUNT)
        final_plan = e.add(plan, e.mul(e.sub(rows, 1), 8 * RowPlan.SIZE))
        self._copy_rows((query, sink_query), query_strides, plan, rows)
        largest, total = e.constant(F32X16, MASKED), e.constant(F32X16, 0.0)
        if self.shape.learned_sinks:
            largest = e.mul(e.load_splat(F32, LANES, learned_sink), LOG2_E)
            total = e.constant(F32X16, 1.0)
        e.store(largest, self.state, 64 * State.LARGEST)
        e.store(total, self.state, 64 * State.TOTAL)
        zero = e.constant(F32X16, 0.0)
        e.loop(TILE_ROWS * self.value_width, [], lambda i, _: e.store(zero, self.sums, e.mul(i, 4)), step=LANES)

        def chunk(index: Value, _: list[Value]) -> None:
            own, final = chunk_of(e, plan, index), chunk_of(e, final_plan, index)
            self._chunk(Chunk(own.start, final.stop, own.low, own.is_sink), final.low, plan)

        e.loop(e.field(tile, Tile.LAST_CHUNK), [], chunk, start=e.field(tile, Tile.FIRST_CHUNK))

        def finish(row: Value, _: list[Value]) -> None:
            inverse = e.splat(e.div(1.0, e.load(F32, self._state(State.TOTAL, row))), LANES)
            store_head(e, self.shape.value_dim, self._sum(row, 0), inverse, e.at(output, e.mul(row, output_stride)))

        e.loop(rows, [], finish)

    def _copy_rows(self, sources: tuple[Value, Value], strides: tuple[Value, Value], plan: Value, rows: Value) -> None:
        """Queries close together, for short addresses; rows beyond the count repeat the last one."""
        e = self.e

        def row_of(row: Value, _: list[Value]) -> None:
            number = e.min(row, e.sub(rows, 1))
            has_sinks = e.compare(">", e.field(plan, RowPlan.SINKS), 0)
            widths = (e.integer(self.key_width), e.select(has_sinks, e.integer(self.key_width), 0))
            for source, stride, target, width in zip(sources, strides, self.queries, widths, strict=True):
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

        e.loop(TILE_ROWS, [], row_of)

    def _chunk(self, chunk: Chunk, highest_low: Value, plan: Value) -> None:
        e = self.e
        first_page = e.div(e.max(e.sub(chunk.low, chunk.start), 0), LANES)
        pages = e.div(e.add(e.sub(chunk.stop, chunk.start), LANES - 1), LANES)
        table = e.at(e.field(plan, RowPlan.PAGES), e.mul(e.div(chunk.start, LANES), 4))
        self._scores(chunk, highest_low, table, first_page, pages)
        e.loop(TILE_ROWS, [], lambda row, _: self._weights(row, first_page, pages))
        update_state(e, self.state)
        self._add_values(table, first_page, pages)

    def _scores(self, chunk: Chunk, highest_low: Value, table: Value, first_page: Value, pages: Value) -> None:
        e, kind, sealed = self.e, self.shape.recent.floats, self.sealed
        query = e.select(chunk.is_sink, self.queries[1], self.queries[0])
        lows = e.select(chunk.is_sink, self.low_sink, self.low)

        def recent_run(first: Value, stop: Value, _: Sequence[Value]) -> Sequence[Value]:
            def page_scores(page: Value, _: list[Value]) -> None:
                address = self._page(self.keys, table, page)

                def block(row: Value, _: list[Value]) -> None:
                    base = e.at(query, e.mul(row, self.query_stride))

                    def channels(channel: Value, sums: list[Value]) -> list[Value]:
                        for k in range(2):
                            keys = kind.load_channel(e, address, e.add(channel, k))
                            for t in range(self.block):
                                q = e.load_splat(F32, LANES, base, e.mul(channel, 4), t * self.query_stride + 4 * k)
                                sums[t] = e.fma(q, keys, sums[t])
                        return sums

                    sums = e.loop(self.key_width, [e.constant(F32X16, 0.0)] * self.block, channels, step=2)
                    self._keep_scores(chunk, highest_low, lows, page, row, sums)

                e.loop(TILE_ROWS, [], block, step=self.block)

            return e.loop(stop, [], page_scores, start=first)

        if sealed is None:
            recent_run(first_page, pages, [])
            return

        def sealed_run(first: Value, stop: Value, _: Sequence[Value]) -> Sequence[Value]:
            def page_scores(page: Value, _: list[Value]) -> None:
                offset = sealed.offset(table, page)
                sealed.load_factors(offset)

                def scale(row: Value, _: list[Value]) -> None:
                    zeros = sealed.scale_query(e.at(query, e.mul(row, self.query_stride)), row)
                    e.store(zeros, self.by_zeros, e.mul(row, 4))

                e.loop(TILE_ROWS, [], scale)

                def block(row: Value, _: list[Value]) -> None:
                    sums = sealed.sums(
                        [offset], [e.at(sealed.query(row), t * sealed.stride) for t in range(self.block)]
                    )
                    for t in range(self.block):
                        zeros = e.load_splat(F32, LANES, self.by_zeros, e.mul(row, 4), 4 * t)
                        sums[t] = e.add(sums[t], zeros)
                    self._keep_scores(chunk, highest_low, lows, page, row, sums)

                e.loop(TILE_ROWS, [], block, step=self.block)

            return e.loop(stop, [], page_scores, start=first)

        walk_runs(e, table, first_page, pages, [], recent_run, sealed_run)

    def _keep_scores(
        self, chunk: Chunk, highest_low: Value, lows: Value, page: Value, row: Value, sums: list[Value]
    ) -> None:
        """Finish and store one page's scores of some rows, masked where a row must not see a key."""
        e = self.e
        least_last = e.convert(e.load(I32, self.last), I64)
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
                    e.store(e.select(visible, score, MASKED), target, t * SCORE_STRIDE)

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
            self._add_channels(table, first_page, pages, self.scores, (0, self.value_width))
            return
        for group, members in enumerate(sealed.groups()):

            def scale(row: Value, _: list[Value], group: int = group) -> None:
                source, target = (e.at(base, e.mul(row, SCORE_STRIDE)) for base in (self.scores, sealed.weights))
                zeros = sealed.scale_weights(group, table, first_page, pages, [source], [target])[0]
                e.store(zeros, self.by_zeros, e.mul(row, 4))

            e.loop(TILE_ROWS, [], scale)
            self._add_channels(table, first_page, pages, sealed.weights, (members.start, members[-1] + LANES))

    def _add_channels(
        self, table: Value, first_page: Value, pages: Value, weights: Value, channels: tuple[int, int]
    ) -> None:
        """Add the weighted values of the chunk to the sums of some channels [first, stop)."""
        e, sealed = self.e, self.sealed

        def block(row: Value, _: list[Value]) -> None:
            base = e.at(weights, e.mul(row, SCORE_STRIDE))

            def one(channel: Value, _: list[Value]) -> None:
                sums = self._sum_values(table, first_page, pages, base, channel)
                for t in range(self.block):
                    at = e.add(row, t)
                    if sealed is not None:
                        sums[t] = e.add(sums[t], e.load_splat(F32, LANES, self.by_zeros, e.mul(at, 4)))
                    factors = [self._state(which, at) for which in (State.OLD_FACTOR, State.NEW_FACTOR)]
                    old, new = (e.load_splat(F32, LANES, factor) for factor in factors)
                    target = self._sum(at, channel)
                    e.store(merge(e, e.load(F32X16, target), sums[t], old, new), target)

            e.loop(channels[1], [], one, start=channels[0], step=LANES)

        e.loop(TILE_ROWS, [], block, step=self.block)

    def _sum_values(self, table: Value, first_page: Value, pages: Value, base: Value, channel: Value) -> list[Value]:
        """16 channels of the weighted values over all pages, for a block of rows whose weights are at `base`."""
        e, shape, kind, sealed = self.e, self.shape, self.shape.recent.floats, self.sealed

        def recent_run(start: Value, stop: Value, sums: list[Value]) -> list[Value]:
            def page_values(page: Value, sums: list[Value]) -> list[Value]:
                address = self._page(self.values, table, page)
                weights = e.at(base, e.mul(page, 4 * LANES))

                def slots(slot: Value, sums: list[Value]) -> list[Value]:
                    for k in range(2):
                        value = kind.load_value(e, address, shape.pages.value_dim, e.add(slot, k), channel)
                        for t in range(self.block):
                            weight = e.load_splat(F32, LANES, weights, e.mul(slot, 4), t * SCORE_STRIDE + 4 * k)
                            sums[t] = e.fma(weight, value, sums[t])
                    return sums

                return e.loop(LANES, sums, slots, step=2)

            return e.loop(stop, sums, page_values, start=start)

        zeros = [e.constant(F32X16, 0.0)] * self.block
        if sealed is None:
            return recent_run(first_page, pages, zeros)

        def sealed_run(start: Value, stop: Value, sums: list[Value]) -> list[Value]:
            def page_values(page: Value, sums: list[Value]) -> list[Value]:
                weights = [e.at(base, e.mul(page, 4 * LANES), t * SCORE_STRIDE) for t in range(self.block)]
                return sealed.add_values(table, page, [channel], weights, sums)

            return e.loop(stop, sums, page_values, start=start)

        return walk_runs(e, table, first_page, pages, zeros, recent_run, sealed_run)

    def _page(self, base: Value, table: Value, number: Value) -> Value:
        return self.e.at(base, self.shape.recent_offset(self.e, load_index(self.e, table, number)))

    def _state(self, which: State, row: Value) -> Value:
        return self.e.at(self.state, 64 * which, self.e.mul(row, 4))

    def _sum(self, row: Value, channel: Value | int) -> Value:
        e = self.e
        return e.at(self.sums, e.mul(row, 4 * self.value_width), e.mul(e.integer(channel), 4))

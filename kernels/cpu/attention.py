"""Attention of single rows: decode, trees of guesses, and latent attention; all query heads of a KV head together.

A work item is a row and a range of its chunks. With few rows every chunk is an item of its own and leaves a part that
`attention_merge` puts together; with many rows an item is a whole row. Both give the same bits (see `softmax`).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING

from .attention_shape import SCORE_STRIDE, AttentionShape, State, store_head, update_state
from .compile import KernelSource
from .ir_types import F32, F32X16, I8, I8X16, I32, Value, vector
from .operation import Arguments, Kind, Operation, Rows, load_index, portion
from .page_types import LANES, padded
from .run_loop import word
from .softmax import (
    LOG2_E,
    MASKED,
    Chunk,
    RowPlan,
    chunk_of,
    key_numbers,
    merge,
    softcap,
    weights_of,
)
from .step_state import GroupWord, Word, group_word

if TYPE_CHECKING:
    from .emit import Emitter


class Item(IntEnum):
    """Words of a work item: int64, four to an item."""

    ROW = 0
    FIRST_CHUNK = 1
    LAST_CHUNK = 2
    PART = 3  # where its part goes, -1: the row is complete and goes to the output
    SIZE = 4


def attention(
    shape: AttentionShape,
    *,
    queries: Rows,
    sink_queries: Rows,
    output: Rows,
    pages: int,
    group: int,
    parts: int,
    learned_sinks: int,
    barrier: bool = True,
) -> Operation:
    """Attend the items of cache group `group`: rotated and scaled queries to `output`, rows of compact heads.

    `pages` is the address of the layer's page 0, `parts` that of the parts, `learned_sinks` that of one float32 logit
    for each head (16 floats of padding behind them).
    """
    arguments = (
        *(*queries.fields, *sink_queries.fields, *output.fields),
        *(pages, 8 * group_word(group, GroupWord.ROWS), parts, learned_sinks),
    )
    source = KernelSource("attention", shape.key, lambda e, r, s, t: _emit(e, r, s, t, shape))
    return Operation(source, arguments, Kind.ATTENTION, barrier)


def _emit(e: Emitter, record: Value, step: Value, thread: Value, shape: AttentionShape) -> None:
    arguments = Arguments(e, record, thread)
    queries, sink_queries, output = arguments.rows(), arguments.rows(), arguments.rows()
    pages, group_offset, parts, learned_sinks = arguments.integers(4)
    group = e.add(step, group_offset)
    plans, items, count = (
        e.field(group, GroupWord.ROWS),
        e.field(group, GroupWord.ITEMS),
        e.field(group, GroupWord.ITEM_COUNT),
    )
    kv_heads, size = shape.pages.heads, heads_together(e, shape)
    split = _query_split(e, e.mul(count, kv_heads), word(e, step, Word.THREADS), shape.group)
    start, stop = portion(e, e.mul(e.mul(count, kv_heads), split), step, thread)

    def unit(number: Value, _: list[Value]) -> None:
        part, rest = e.remainder(number, split), e.div(number, split)
        kv_head = e.remainder(rest, kv_heads)
        item = e.at(items, e.mul(e.div(rest, kv_heads), 8 * Item.SIZE))
        row = e.field(item, Item.ROW)
        first, last = (e.div(e.mul(e.add(part, i), shape.group), split) for i in range(2))
        keys = e.add(pages, e.mul(kv_head, shape.pages.key_head_bytes))
        values = e.add(pages, e.add(e.mul(kv_head, shape.pages.value_head_bytes), shape.pages.value_offset))

        def heads(together: int) -> Callable[[Value, list[Value]], None]:
            def body(index: Value, _: list[Value]) -> None:
                head = e.add(e.mul(kv_head, shape.group), index)
                offset = e.mul(head, shape.query_stride)
                part_number = e.field(item, Item.PART)
                part_address = e.add(parts, e.mul(part_number, shape.part_bytes))
                part_address = e.add(part_address, e.mul(head, shape.part_head_bytes))
                values_of = [
                    e.at(queries.row(row), offset),
                    e.at(sink_queries.row(row), offset),
                    e.add(plans, e.mul(row, 8 * RowPlan.SIZE)),
                    *(e.field(item, Item.FIRST_CHUNK), e.field(item, Item.LAST_CHUNK), keys, values),
                    e.at(output.row(row), e.mul(head, 4 * shape.value_dim)),
                    e.select(e.compare("<", part_number, 0), 0, part_address),
                    e.add(learned_sinks, e.mul(head, 4)),
                ]
                e.outline(f"attend_{together}", lambda i, a: _Attend(i, shape, together, *a).emit(), values_of)

            return body

        whole = e.mul(e.div(e.sub(last, first), size), size)
        e.loop(e.add(first, whole), [], heads(size), start=first, step=size)
        if size > 1:
            e.loop(last, [], heads(1), start=e.add(first, whole))

    e.loop(stop, [], unit, start=start)


def _query_split(e: Emitter, units: Value, threads: Value, group: int) -> Value:
    """Into how many parts the query heads of a KV head are divided, so that few units still occupy all threads."""
    enough = e.bit_or(e.compare("==", e.remainder(units, threads), 0), e.compare(">=", units, e.mul(threads, 4)))
    return e.select(enough, e.integer(1), group)


def heads_together(e: Emitter, shape: AttentionShape) -> int:
    """Query heads that share each load of keys and values: the largest divisor of the group that registers allow."""
    most = min(8, e.isa.token_block)
    return max(n for n in range(1, most + 1) if shape.group % n == 0)


class _Attend:
    """Emits the attention of `count` query heads of one KV head over a range of chunks."""

    def __init__(self, e: Emitter, shape: AttentionShape, count: int, *arguments: Value) -> None:
        self.e, self.shape, self.count = e, shape, count
        query, sink_query, self.plan, self.first, self.last, self.keys, self.values, *rest = arguments
        self.output, self.part, self.learned_sinks = rest
        self.query, self.sink_query = e.pointer(query), e.pointer(sink_query)
        registers = 2 * e.isa.token_block
        self.pages_together = max(1, min(4, registers // count))
        self.channels_together = max(1, registers // count)
        width = padded(shape.value_dim)
        self.scores = e.scratch(count * (SCORE_STRIDE + 64 * self.pages_together))
        self.score_stride = SCORE_STRIDE + 64 * self.pages_together
        self.sums, self.sum_stride = e.scratch(4 * width * count), 4 * width
        self.fresh = e.scratch(4 * width * count) if shape.pages.values_are_keys else self.sums
        self.state = e.scratch(64 * State.SIZE)

    def emit(self) -> None:
        e, width = self.e, padded(self.shape.value_dim)
        self._start()
        e.loop(
            width * self.count, [], lambda i, _: e.store(e.constant(F32X16, 0.0), self.sums, e.mul(i, 4)), step=LANES
        )
        e.loop(self.last, [], lambda index, _: self._chunk(chunk_of(e, self.plan, index)), start=self.first)
        with e.either(e.compare("!=", self.part, 0)) as (then, otherwise):
            with then:
                self._store_part()
            with otherwise:
                self._store_output()

    def _state(self, which: State) -> Value:
        return self.e.at(self.state, 64 * which)

    def _start(self) -> None:
        e = self.e
        largest, total = e.constant(F32X16, MASKED), e.constant(F32X16, 0.0)
        if self.shape.learned_sinks:
            whole = e.compare("==", self.part, 0)
            logits = e.mul(e.load(F32X16, self.learned_sinks), LOG2_E)
            largest, total = e.select(whole, logits, largest), e.select(whole, e.constant(F32X16, 1.0), total)
        e.store(largest, self._state(State.LARGEST))
        e.store(total, self._state(State.TOTAL))

    def _chunk(self, chunk: Chunk) -> None:
        e = self.e
        first_page = e.div(e.max(e.sub(chunk.low, chunk.start), 0), LANES)
        pages = e.div(e.add(e.sub(chunk.stop, chunk.start), LANES - 1), LANES)
        table = e.at(e.field(self.plan, RowPlan.PAGES), e.mul(e.div(chunk.start, LANES), 4))
        query = e.select(chunk.is_sink, self.sink_query, self.query)
        largest = self._scores(chunk, query, table, first_page, pages)
        for head in range(self.count):
            self._weights(head, e.horizontal_max(largest[head]), first_page, pages)
        update_state(e, self.state)
        if self.shape.pages.values_are_keys:
            self._latent_values(table, first_page, pages)
        else:
            self._values(table, first_page, pages)

    def _scores(self, chunk: Chunk, query: Value, table: Value, first_page: Value, pages: Value) -> list[Value]:
        """Scores of all heads and keys to scratch; returns each head's largest ones, lane by lane."""
        e, shape, together = self.e, self.shape, self.pages_together
        unroll = 2 if together * self.count > 4 else 4

        def page_block(page: Value, largest: list[Value]) -> list[Value]:
            numbers = [e.min(e.add(page, i), e.sub(pages, 1)) for i in range(together)]
            addresses = [self._page(self.keys, table, number) for number in numbers]

            def channels(channel: Value, sums: list[Value]) -> list[Value]:
                for k in range(unroll):
                    at = e.add(channel, k)
                    keys = [shape.pages.page_type.load_channel(e, address, at) for address in addresses]
                    for head in range(self.count):
                        q = e.load_splat(F32, LANES, query, e.mul(at, 4), head * shape.query_stride)
                        for i in range(together):
                            sums[head * together + i] = e.fma(q, keys[i], sums[head * together + i])
                return sums

            zeros = [e.constant(F32X16, 0.0)] * (self.count * together)
            sums = e.loop(padded(shape.pages.key_dim), zeros, channels, step=unroll)
            for i in range(together):
                first_key = e.add(chunk.start, e.mul(e.add(page, i), LANES))
                visible = self._visible(chunk, first_key)
                for head in range(self.count):
                    score = e.select(visible, softcap(e, sums[head * together + i], shape.softcap), MASKED)
                    e.store(score, self._score(head, e.add(page, i)))
                    largest[head] = e.max(largest[head], score)
            return largest

        start = [e.constant(F32X16, MASKED)] * self.count
        return e.loop(pages, start, page_block, start=first_page, step=together)

    def _visible(self, chunk: Chunk, first_key: Value) -> Value:
        """Which of a page's keys the row may see."""
        e = self.e
        numbers = key_numbers(e, first_key)
        low, stop = (e.splat(e.convert(value, I32), LANES) for value in (chunk.low, chunk.stop))
        visible = e.bit_and(e.compare(">=", numbers, low), e.compare("<", numbers, stop))
        tree, tree_start = e.field(self.plan, RowPlan.TREE), e.field(self.plan, RowPlan.TREE_START)
        asks = e.bit_and(e.compare("!=", tree, 0), e.compare(">=", first_key, tree_start))
        mask = e.scratch(LANES)
        e.store(e.constant(I8X16, 1), mask)
        with e.when(e.bit_and(asks, e.compare("<", first_key, chunk.stop))):
            e.store(e.load(I8X16, tree, e.sub(first_key, tree_start)), mask)
        return e.bit_and(visible, e.compare("!=", e.load(vector(I8, LANES), mask), 0))

    def _weights(self, head: int, largest: Value, first_page: Value, pages: Value) -> None:
        """Scores to weights, in place; the head's largest score and the sum of its weights to the state."""
        e = self.e
        spread = e.splat(largest, LANES)

        def page_weights(page: Value, total: list[Value]) -> list[Value]:
            address = self._score(head, page)
            weights = weights_of(e, e.load(F32X16, address), spread)
            e.store(weights, address)
            return [e.add(total[0], weights)]

        total = e.loop(pages, [e.constant(F32X16, 0.0)], page_weights, start=first_page)
        e.store(largest, self._state(State.CHUNK_LARGEST), 4 * head)
        e.store(e.horizontal_sum(total[0]), self._state(State.CHUNK_TOTAL), 4 * head)

    def _values(self, table: Value, first_page: Value, pages: Value) -> None:
        """Add the weighted values of the chunk to the sums."""
        e, shape, kind = self.e, self.shape, self.shape.pages.page_type
        width, unroll = padded(shape.value_dim), 4
        for first in range(0, width, LANES * self.channels_together):
            channels = range(first, min(width, first + LANES * self.channels_together), LANES)

            def page_values(page: Value, sums: list[Value], channels: range = channels) -> list[Value]:
                address = self._page(self.values, table, page)

                def slots(slot: Value, sums: list[Value]) -> list[Value]:
                    for k in range(unroll):
                        at = e.add(slot, k)
                        loaded = [kind.load_value(e, address, shape.pages.value_dim, at, c) for c in channels]
                        for head in range(self.count):
                            weight = e.load_splat(F32, LANES, self._score(head, page), e.mul(at, 4))
                            for i, value in enumerate(loaded):
                                place = head * len(channels) + i
                                sums[place] = e.fma(weight, value, sums[place])
                    return sums

                return e.loop(LANES, sums, slots, step=unroll)

            zeros = [e.constant(F32X16, 0.0)] * (len(channels) * self.count)
            sums = e.loop(pages, zeros, page_values, start=first_page)
            for head in range(self.count):
                for i, channel in enumerate(channels):
                    self._add(head, channel, sums[head * len(channels) + i])

    def _latent_values(self, table: Value, first_page: Value, pages: Value) -> None:
        """As `_values`, where the value of a key is the first part of the key itself."""
        e, kind, together = self.e, self.shape.pages.page_type, self.channels_together
        width = padded(self.shape.value_dim)
        together = next(n for n in range(min(together, 8), 0, -1) if width % n == 0)

        def block(channel: Value, _: list[Value]) -> None:
            def page_values(page: Value, sums: list[Value]) -> list[Value]:
                address = self._page(self.keys, table, page)
                weights = [e.load(F32X16, self._score(head, page)) for head in range(self.count)]
                for k in range(together):
                    keys = kind.load_channel(e, address, e.add(channel, k))
                    for head in range(self.count):
                        sums[head * together + k] = e.fma(weights[head], keys, sums[head * together + k])
                return sums

            zeros = [e.constant(F32X16, 0.0)] * (together * self.count)
            sums = e.loop(pages, zeros, page_values, start=first_page)
            for head in range(self.count):
                for k in range(together):
                    total = e.horizontal_sum(sums[head * together + k])
                    e.store(total, self.fresh, head * self.sum_stride, e.mul(e.add(channel, k), 4))

        e.loop(width, [], block, step=together)
        for head in range(self.count):

            def add(channel: Value, _: list[Value], head: int = head) -> None:
                fresh = e.load(F32X16, self.fresh, head * self.sum_stride, e.mul(channel, 4))
                self._add(head, channel, fresh)

            e.loop(width, [], add, step=LANES)

    def _add(self, head: int, channel: Value | int, fresh: Value) -> None:
        e = self.e
        address = e.at(self.sums, head * self.sum_stride, e.mul(e.integer(channel), 4))
        old = e.load_splat(F32, LANES, self._state(State.OLD_FACTOR), 4 * head)
        new = e.load_splat(F32, LANES, self._state(State.NEW_FACTOR), 4 * head)
        e.store(merge(e, e.load(F32X16, address), fresh, old, new), address)

    def _store_part(self) -> None:
        e, width = self.e, padded(self.shape.value_dim)
        for head in range(self.count):
            target = e.at(self.part, head * self.shape.part_head_bytes)
            for channel in range(0, width, LANES):
                e.store(e.load(F32X16, self.sums, head * self.sum_stride + 4 * channel), target, 4 * channel)
            for place, which in enumerate((State.LARGEST, State.TOTAL)):
                e.store(e.load(F32, self._state(which), 4 * head), target, 4 * (width + place))

    def _store_output(self) -> None:
        e = self.e
        for head in range(self.count):
            inverse = e.splat(e.div(1.0, e.load(F32, self._state(State.TOTAL), 4 * head)), LANES)
            target = e.at(self.output, 4 * head * self.shape.value_dim)
            store_head(e, self.shape.value_dim, e.at(self.sums, head * self.sum_stride), inverse, target)

    def _page(self, base: Value, table: Value, number: Value) -> Value:
        e = self.e
        return e.at(base, e.mul(load_index(e, table, number), self.shape.pages.page_bytes))

    def _score(self, head: int, page: Value) -> Value:
        return self.e.at(self.scores, self.e.mul(page, 4 * LANES), head * self.score_stride)

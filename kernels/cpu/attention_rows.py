"""The attention of one row and some query heads of a KV head over a range of chunks, inside the decode kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .attention_fetch import NextKeys, fetch_share
from .attention_sealed import SealedPages
from .attention_shape import SCORE_STRIDE, AttentionShape, HeadPages, State, store_head, update_state
from .ir_types import F32, F32X16, I8, I8X16, I32, Value, vector
from .operation import load_index
from .page_types import LANES, padded
from .page_walk import walk_runs
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

if TYPE_CHECKING:
    from .emit import Emitter


class RowAttention:
    """Emits the attention of `count` query heads of one KV head over a range of chunks."""

    def __init__(self, e: Emitter, shape: AttentionShape, count: int, *arguments: Value) -> None:
        self.e, self.shape, self.count = e, shape, count
        query, sink_query, self.plan, self.first, self.last, *rest = arguments
        *pages, self.output, self.part, self.learned_sinks = rest[:-4]
        self.pages, self.following = HeadPages(*pages), NextKeys(*rest[-4:])
        self.keys, self.values = self.pages.recent_keys, self.pages.recent_values
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
        self.sealed = None
        if shape.sealed is not None:
            self.sealed_together = max(1, min(4, registers // 2 // count))
            self.sealed = SealedPages(e, shape, shape.sealed, count, self.sealed_together)
            self.sealed.place(self.pages.keys, self.pages.values, self.pages.bases)

    def emit(self) -> None:
        """The whole kernel."""
        e, width = self.e, padded(self.shape.value_dim)
        self._start()
        e.loop(
            width * self.count, [], lambda i, _: e.store(e.constant(F32X16, 0.0), self.sums, e.mul(i, 4)), step=LANES
        )
        e.loop(self.last, [], lambda index, _: self._chunk(index), start=self.first)
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

    def _chunk(self, index: Value) -> None:
        e = self.e
        chunk = chunk_of(e, self.plan, index)
        self.next_keys = self._after(index)
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

    def _after(self, index: Value) -> NextKeys:
        """What is read after this chunk: the next one of the range or, behind the last one, what follows the range."""
        e = self.e
        after = e.add(index, 1)
        own = NextKeys.of(e, self.pages, e.field(self.plan, RowPlan.PAGES), chunk_of(e, self.plan, after))
        more = e.compare("<", after, self.last)
        pairs = zip(own.all, self.following.all, strict=True)
        return NextKeys(*(e.select(more, mine, other) for mine, other in pairs))

    def _scores(self, chunk: Chunk, query: Value, table: Value, first_page: Value, pages: Value) -> list[Value]:
        """Scores of all heads and keys to scratch; returns each head's largest ones, lane by lane."""
        e, sealed = self.e, self.sealed
        start = [e.constant(F32X16, MASKED)] * self.count

        def recent_run(first: Value, stop: Value, largest: list[Value]) -> list[Value]:
            return self._recent_scores(chunk, query, table, first, stop, largest)

        if sealed is None:
            return recent_run(first_page, pages, start)
        for head in range(self.count):
            sealed.take_query(e.at(query, head * self.shape.query_stride), head)

        def sealed_run(first: Value, stop: Value, largest: list[Value]) -> list[Value]:
            return self._sealed_scores(sealed, chunk, table, first, stop, largest)

        return walk_runs(e, table, first_page, pages, start, recent_run, sealed_run)

    def _recent_scores(
        self, chunk: Chunk, query: Value, table: Value, first: Value, stop: Value, largest: list[Value]
    ) -> list[Value]:
        e, shape, together = self.e, self.shape, self.pages_together
        kind = shape.recent.floats
        unroll, width = 2 if together * self.count > 4 else 4, padded(shape.pages.key_dim)

        def page_block(page: Value, largest: list[Value]) -> list[Value]:
            numbers = [e.min(e.add(page, i), e.sub(stop, 1)) for i in range(together)]
            addresses = [self.shape.recent_keys(self.e, self.keys, table, number) for number in numbers]
            values = (
                []
                if shape.pages.values_are_keys
                else [self.shape.recent_values(self.e, self.values, table, n) for n in numbers]
            )
            parts = width // unroll

            def channels(channel: Value, sums: list[Value]) -> list[Value]:
                for address in values:
                    fetch_share(e, address, shape.recent.value_head_bytes, e.div(channel, unroll), parts)
                for k in range(unroll):
                    at = e.add(channel, k)
                    keys = [kind.load_channel(e, address, at) for address in addresses]
                    for head in range(self.count):
                        q = e.load_splat(F32, LANES, query, e.mul(at, 4), head * shape.query_stride)
                        for i in range(together):
                            sums[head * together + i] = e.fma(q, keys[i], sums[head * together + i])
                return sums

            zeros = [e.constant(F32X16, 0.0)] * (self.count * together)
            sums = e.loop(width, zeros, channels, step=unroll)
            return self._keep_scores(chunk, page, stop, sums, largest)

        return e.loop(stop, largest, page_block, start=first, step=together)

    def _sealed_scores(
        self,
        sealed: SealedPages,
        chunk: Chunk,
        table: Value,
        first: Value,
        stop: Value,
        largest: list[Value],
    ) -> list[Value]:
        e, together = self.e, self.sealed_together

        def page_block(page: Value, largest: list[Value]) -> list[Value]:
            numbers = [e.min(e.add(page, i), e.sub(stop, 1)) if i else page for i in range(together)]
            sealed_pages = [load_index(e, table, number) for number in numbers]
            bases: list[Value] = []
            zeros: list[Value] = []
            for i, sealed_page in enumerate(sealed_pages):
                bases.append(sealed.load_factors(sealed_page))
                zeros.extend(sealed.scale_query(head, i * self.count + head) for head in range(self.count))
            values = [sealed.values_of(sealed_page) for sealed_page in sealed_pages]
            size = self.shape.pages.value_head_bytes

            def fetch(step: Value, steps: int) -> None:
                for address in values:
                    fetch_share(e, address, size, step, steps)

            queries = [sealed.query(row) for row in range(together * self.count)]
            sums = sealed.sums(sealed_pages, queries, fetch)
            by_head = [
                sealed.score(sums[i * self.count + head], zeros[i * self.count + head], bases[i], head)
                for head in range(self.count)
                for i in range(together)
            ]
            return self._keep_scores(chunk, page, stop, by_head, largest)

        return e.loop(stop, largest, page_block, start=first, step=together)

    def _keep_scores(
        self, chunk: Chunk, page: Value, stop: Value, sums: list[Value], largest: list[Value]
    ) -> list[Value]:
        """Scores of neighbouring pages, all pages of the first head first; pages from `stop` on are not in this run."""
        e, together = self.e, len(sums) // self.count
        for i in range(together):
            number = e.add(page, i)
            visible = self._visible(chunk, e.add(chunk.start, e.mul(number, LANES)))
            if self.sealed is not None and i:
                visible = e.bit_and(visible, e.splat(e.compare("<", number, stop), LANES))
            for head in range(self.count):
                score = e.select(visible, softcap(e, sums[head * together + i], self.shape.softcap), MASKED)
                e.store(score, self._score(head, number))
                largest[head] = e.max(largest[head], score)
        return largest

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
        e, width, sealed = self.e, padded(self.shape.value_dim), self.sealed
        groups, together = [range(0, width, LANES)] if sealed is None else sealed.groups(), self.channels_together
        sums_done, all_sums = 0, sum(-(-len(members) // together) for members in groups)
        weights = [e.at(self.scores, self.score_stride * head) for head in range(self.count)]
        for group, members in enumerate(groups):
            scaled = []
            if sealed is not None:
                scaled = [
                    sealed.scale_weights(group, table, first_page, pages, own, head) for head, own in enumerate(weights)
                ]
            for first in range(0, len(members), together):
                channels = members[first : first + together]
                sums = self._sum_values(table, first_page, pages, channels, weights, scaled, (sums_done, all_sums))
                sums_done += 1
                for head in range(self.count):
                    for i, channel in enumerate(channels):
                        self._add(head, channel, sums[head * len(channels) + i])

    def _sum_values(
        self,
        table: Value,
        first_page: Value,
        pages: Value,
        channels: range,
        weights: list[Value],
        scaled: list[tuple[Value, Value]],
        share: tuple[int, int],
    ) -> list[Value]:
        """Weighted values of some channels over all pages: every channel of the first head, then of the next.

        `scaled`: what `scale_weights` gave for each head. `share`: the how-manieth of how many such sums this is; that
        share of the next keys is fetched meanwhile.
        """
        e, shape, kind, sealed = self.e, self.shape, self.shape.recent.floats, self.sealed
        unroll = 4

        def recent_run(start: Value, stop: Value, sums: list[Value]) -> list[Value]:
            def page_values(page: Value, sums: list[Value]) -> list[Value]:
                address = self.shape.recent_values(self.e, self.values, table, page)
                own = [e.at(row, e.mul(page, 4 * LANES)) for row in weights]
                keys, steps = self.next_keys.page(e, shape, page), LANES // unroll

                def slots(slot: Value, sums: list[Value]) -> list[Value]:
                    step = e.add(e.div(slot, unroll), share[0] * steps)
                    fetch_share(e, keys, shape.pages.key_head_bytes, step, share[1] * steps)
                    for k in range(unroll):
                        at = e.add(slot, k)
                        loaded = [kind.load_value(e, address, shape.pages.value_dim, at, c) for c in channels]
                        for head in range(self.count):
                            weight = e.load_splat(F32, LANES, own[head], e.mul(at, 4))
                            for i, value in enumerate(loaded):
                                place = head * len(channels) + i
                                sums[place] = e.fma(weight, value, sums[place])
                    return sums

                return e.loop(LANES, sums, slots, step=unroll)

            return e.loop(stop, sums, page_values, start=start)

        zeros = [e.constant(F32X16, 0.0)] * (len(channels) * self.count)
        if sealed is None:
            return recent_run(first_page, pages, zeros)

        def fetch(page: Value, step: Value, steps: int) -> None:
            keys = self.next_keys.page(e, shape, page)
            fetch_share(e, keys, shape.pages.key_head_bytes, e.add(step, share[0] * steps), share[1] * steps)

        rows = [sealed.pairs_of(head) for head in range(self.count)]
        integers = sealed.weighted_values(table, first_page, pages, channels, rows, fetch)
        sums = [
            sealed.value_sum(integers[head * len(channels) + i], *scaled[head])
            for head in range(self.count)
            for i in range(len(channels))
        ]
        return walk_runs(e, table, first_page, pages, sums, recent_run, lambda _, __, values: values)

    def _latent_values(self, table: Value, first_page: Value, pages: Value) -> None:
        """As `_values`, where the value of a key is the first part of the key itself."""
        e, kind, together = self.e, self.shape.recent.floats, self.channels_together
        width = padded(self.shape.value_dim)
        together = next(n for n in range(min(together, 8), 0, -1) if width % n == 0)

        def block(channel: Value, _: list[Value]) -> None:
            def page_values(page: Value, sums: list[Value]) -> list[Value]:
                address = self.shape.recent_keys(self.e, self.keys, table, page)
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

    def _score(self, head: int, page: Value) -> Value:
        return self.e.at(self.scores, self.e.mul(page, 4 * LANES), head * self.score_stride)

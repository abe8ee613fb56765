"""SparQ on the CPU: estimate all scores from a few components, then read the best keys and their values only.

Keys lie channel by channel, so an estimate reads `components` of a page's rows of keys. A page of which no key was
chosen is not read again. The mean of all values comes from sums that are kept for every full page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from localllm.kernels.selective import QuerySparse

from .attention_shape import AttentionShape, store_head
from .compile import KernelSource
from .ir_types import F32, F32X16, I32, I32X16, I64, Value
from .operation import Arguments, Kind, Operation, Rows, portion
from .page_scores import RowKeys
from .page_types import LANES, PagePool, PagePoolValue, PageShape, padded
from .run_loop import word
from .softmax import MASKED, RowPlan, key_numbers, softcap
from .step_state import GroupWord, Word, group_word

if TYPE_CHECKING:
    from .emit import Emitter

_RECENT = 1.0e9  # above any estimate
_NOT_SEEN = -1.0


def sum_bytes(shape: PageShape) -> int:
    """Bytes of the sums of one page: float32 for each KV head."""
    return 4 * shape.heads * padded(shape.value_dim)


def sum_values(*, pages: PagePool, group: int, sums: int) -> Operation:
    """The sum of the values of every page that a row of the step filled."""
    arguments, shape = (*pages.fields, 8 * group_word(group, GroupWord.ROWS), sums), pages.shape

    def emit(e: Emitter, record: Value, step: Value, thread: Value) -> None:
        arguments = Arguments(e, record, thread)
        pages = PagePoolValue(e, shape, arguments.integers(2))
        group_offset, sums = arguments.integers(2)
        slots = e.field(e.add(step, group_offset), GroupWord.SLOTS)
        start, stop = portion(e, e.mul(word(e, step, Word.ROWS), shape.heads), step, thread)

        def unit(number: Value, _: list[Value]) -> None:
            row, head = e.div(number, shape.heads), e.remainder(number, shape.heads)
            slot = e.load(I64, slots, e.mul(row, 8))
            page = e.div(slot, LANES)
            with e.when(e.compare("==", e.remainder(slot, LANES), LANES - 1)):
                values = e.at(pages.values(head), e.mul(page, shape.value_head_bytes))
                target = e.add(sums, e.mul(page, sum_bytes(shape)))
                target = e.add(target, e.mul(head, 4 * padded(shape.value_dim)))
                for channel in range(0, padded(shape.value_dim), LANES):
                    e.store(_page_sum(e, shape, values, e.integer(LANES), channel), target, 4 * channel)

        e.loop(stop, [], unit, start=start)

    return Operation(KernelSource("sum_values", str(shape), emit), arguments, Kind.ATTENTION)


def _page_sum(e: Emitter, shape: PageShape, values: Value, slots: Value, channel: int) -> Value:
    """16 channels of the first `slots` values of a page."""

    def add(slot: Value, total: list[Value]) -> list[Value]:
        return [e.add(total[0], shape.floats.load_value(e, values, shape.value_dim, slot, channel))]

    return e.loop(slots, [e.constant(F32X16, 0.0)], add)[0]


def query_sparse(
    shape: AttentionShape,
    policy: QuerySparse,
    *,
    queries: Rows,
    output: Rows,
    pages: PagePool,
    group: int,
    sums: int,
    buffer: Rows,
) -> Operation:
    """Attend all rows; `buffer` holds `group + 1` floats for every key that a row may see, and 16 more."""
    arguments = (
        *(*queries.fields, *output.fields, *pages.fields),
        *(8 * group_word(group, GroupWord.ROWS), sums, *buffer.fields),
        *(min(policy.components, shape.pages.key_dim), policy.tokens, policy.recent),
    )

    def emit(e: Emitter, record: Value, step: Value, thread: Value) -> None:
        arguments = Arguments(e, record, thread)
        queries, output = arguments.rows(), arguments.rows()
        address, pages, group_offset, sums = arguments.integers(4)
        buffer = arguments.rows().address
        components, tokens, recent = arguments.integers(3)
        plans = e.field(e.add(step, group_offset), GroupWord.ROWS)
        kv_heads = shape.pages.heads
        start, stop = portion(e, e.mul(word(e, step, Word.ROWS), kv_heads), step, thread)
        scratch = e.scratch(_Unit.scratch_bytes(shape))

        def unit(number: Value, _: list[Value]) -> None:
            row, kv_head = e.div(number, kv_heads), e.remainder(number, kv_heads)
            head = e.mul(kv_head, shape.group)
            values_of = [
                e.address(e.at(queries.row(row), e.mul(head, shape.query_stride))),
                e.address(e.at(output.row(row), e.mul(head, 4 * shape.value_dim))),
                e.add(plans, e.mul(row, 8 * RowPlan.SIZE)),
                *(address, pages, kv_head, sums, buffer, components, tokens, recent, e.address(scratch)),
            ]
            e.outline("query_sparse_unit", lambda inner, a: _Unit(inner, shape, a).emit(), values_of)

        e.loop(stop, [], unit, start=start)

    return Operation(KernelSource("query_sparse", shape.key, emit), arguments, Kind.ATTENTION)


class _Unit:
    """One row and KV head, with the query heads that share it."""

    def __init__(self, e: Emitter, shape: AttentionShape, arguments: list[Value]) -> None:
        self.e, self.shape, self.group = e, shape, shape.group
        self.query, self.output, plan, *pool, self.kv_head, self.sums, buffer = arguments[:-4]
        rest = arguments[-4:]
        self.components, self.tokens, self.recent, scratch = rest
        self.width, self.value_width = padded(shape.pages.key_dim), padded(shape.value_dim)
        pages = PagePoolValue(e, shape.recent, pool)
        self.values = pages.values(self.kv_head)
        self.keys = RowKeys.of(e, shape, pages, plan, self.kv_head)
        self.count = self.keys.pages
        size = e.mul(self.count, 4 * LANES)
        self.best = buffer  # estimates of all heads together
        self.own = [e.add(buffer, e.mul(size, 1 + head)) for head in range(self.group)]  # of each head, then scores
        self.magnitudes = scratch
        self.channels = e.add(scratch, 4 * self.width)
        self.chosen = [e.add(scratch, (12 + 4 * head) * self.width) for head in range(self.group)]
        sums = e.add(scratch, (12 + 4 * self.group) * self.width)
        self.attended = [e.add(sums, 4 * self.value_width * head) for head in range(self.group)]
        self.queries = [e.at(self.query, head * shape.query_stride) for head in range(self.group)]

    @staticmethod
    def scratch_bytes(shape: AttentionShape) -> int:
        """Magnitudes, numbers (int64) and values of the chosen components, and attended values."""
        width = padded(shape.pages.key_dim)
        return (12 + 4 * shape.group) * width + 4 * shape.group * padded(shape.value_dim)

    def emit(self) -> None:
        e = self.e
        everything = e.compare("<=", e.add(self.keys.last, 1), self.tokens)
        threshold = e.scratch(4)
        e.store(e.constant(F32, -2.0), threshold)
        with e.when(e.compare("==", everything, 0)):
            self._choose_components()
            self._estimate()
            e.store(self._threshold(), threshold)
        self._attend(e.load(F32, threshold), everything)

    def _choose_components(self) -> None:
        """The channels with the largest magnitudes, and each query's values there over the square root of its share."""
        e, kind = self.e, F32X16
        totals: list[Value] = [e.constant(kind, 0.0)] * self.group
        for channel in range(0, self.width, LANES):
            together = e.constant(kind, 0.0)
            for head in range(self.group):
                size = e.abs(e.load(kind, self.query, head * self.shape.query_stride + 4 * channel))
                totals[head] = e.add(totals[head], size)
                together = e.add(together, size)
            e.store(together, self.magnitudes, 4 * channel)
        whole = [e.horizontal_sum(total) for total in totals]

        def choose(place: Value, parts: list[Value]) -> list[Value]:
            best, index = e.constant(kind, -1.0), e.constant(I32X16, 0)
            for channel in range(0, self.width, LANES):
                size = e.load(kind, self.magnitudes, 4 * channel)
                larger = e.compare(">", size, best)
                index = e.select(larger, key_numbers(e, e.integer(channel)), index)
                best = e.select(larger, size, best)
            largest = e.compare("==", best, e.splat(e.horizontal_max(best), LANES))
            channel = e.convert(e.horizontal_min(e.select(largest, index, 2**31 - 1)), I64)
            e.store(e.constant(F32, -2.0), self.magnitudes, e.mul(channel, 4))
            e.store(channel, self.channels, e.mul(place, 8))
            updated = []
            for head, part in enumerate(parts):
                value = e.load(F32, self.query, head * self.shape.query_stride, e.mul(channel, 4))
                e.store(value, self.chosen[head], e.mul(place, 4))
                updated.append(e.add(part, e.abs(value)))
            return updated

        parts = e.loop(self.components, [e.constant(F32, 0.0)] * self.group, choose)
        for head, part in enumerate(parts):
            factor = e.sqrt(e.div(whole[head], part))

            def scale(place: Value, _: list[Value], head: int = head, factor: Value = factor) -> None:
                offset = e.mul(place, 4)
                e.store(e.mul(e.load(F32, self.chosen[head], offset), factor), self.chosen[head], offset)

            e.loop(self.components, [], scale)

    def _estimate(self) -> None:
        """Every head's estimates, and all of them together with the latest keys on top."""
        e, keys, kind = self.e, self.keys, self.shape.recent.floats

        def scores(number: Value, largest: list[Value]) -> list[Value]:
            address = e.at(keys.keys, e.mul(keys.entry(number), self.shape.recent.key_head_bytes))

            def component(place: Value, sums: list[Value]) -> list[Value]:
                key = kind.load_channel(e, address, e.load(I64, self.channels, e.mul(place, 8)))
                for head in range(self.group):
                    q = e.load_splat(F32, LANES, self.chosen[head], e.mul(place, 4))
                    sums[head] = e.fma(q, key, sums[head])
                return sums

            sums = e.loop(self.components, [e.constant(F32X16, 0.0)] * self.group, component)
            for head in range(self.group):
                largest[head] = e.max(largest[head], keys.keep_scores(number, sums[head], self.own[head]))
            return largest

        start = [e.constant(F32X16, MASKED)] * self.group
        for head, largest in enumerate(e.loop(self.count, start, scores)):
            share = e.splat(e.div(1.0, keys.exponents(self.own[head], largest)), LANES)

            def normalise(number: Value, _: list[Value], head: int = head, share: Value = share) -> None:
                offset = e.mul(number, 4 * LANES)
                estimate = e.mul(e.load(F32X16, self.own[head], offset), share)
                e.store(estimate, self.own[head], offset)
                together = e.add(estimate, e.load(F32X16, self.best, offset)) if head else estimate
                e.store(together, self.best, offset)

            e.loop(self.count, [], normalise)
        recent = e.splat(e.convert(e.sub(keys.last, self.recent), I32), LANES)

        def lift(number: Value, _: list[Value]) -> None:
            offset = e.mul(number, 4 * LANES)
            numbers = key_numbers(e, e.mul(number, LANES))
            value = e.select(e.compare(">", numbers, recent), _RECENT, e.load(F32X16, self.best, offset))
            e.store(e.select(keys.visible(number), value, _NOT_SEEN), self.best, offset)

        e.loop(self.count, [], lift)

    def _threshold(self) -> Value:
        """The `tokens`-th largest of all: found bit by bit, since positive floats are ordered as their bits are."""
        e = self.e

        def bit(index: Value, found: list[Value]) -> list[Value]:
            guess = e.bit_or(found[0], e.convert(e.shift_left(e.constant(I64, 1), e.sub(30, index)), I32))
            limit = e.splat(e.bitcast(guess, F32), LANES)

            def count(number: Value, total: list[Value]) -> list[Value]:
                reached = e.compare(">=", e.load(F32X16, self.best, e.mul(number, 4 * LANES)), limit)
                return [e.add(total[0], e.select(reached, e.constant(I32X16, 1), 0))]

            total = e.horizontal_sum(e.loop(self.count, [e.constant(I32X16, 0)], count)[0])
            enough = e.compare(">=", e.convert(total, I64), self.tokens)
            return [e.select(enough, guess, found[0])]

        return e.bitcast(e.loop(31, [e.constant(I32, 0)], bit)[0], F32)

    def _attend(self, threshold: Value, everything: Value) -> None:
        """The output of all query heads from the keys whose estimate reaches the threshold."""
        e, keys = self.e, self.keys
        limit = e.splat(threshold, LANES)

        def scores(number: Value, carried: list[Value]) -> list[Value]:
            offset = e.mul(number, 4 * LANES)
            reached = e.compare(">=", e.load(F32X16, self.best, offset), limit)
            mask = e.bit_and(e.bit_or(reached, e.splat(everything, LANES)), keys.visible(number))
            covered, largest = carried[: self.group], carried[self.group :]
            for head in range(self.group):
                estimate = e.load(F32X16, self.own[head], offset)
                covered[head] = e.add(covered[head], e.select(mask, estimate, 0.0))
                e.store(e.constant(F32X16, MASKED), self.own[head], offset)
            chosen = e.horizontal_max(e.select(mask, e.constant(I32X16, 1), 0))
            with e.when(e.compare("!=", chosen, 0)):
                for head, products in enumerate(keys.products(number, self.queries)):
                    score = e.select(mask, softcap(e, products, self.shape.softcap), MASKED)
                    e.store(score, self.own[head], offset)
            for head in range(self.group):
                largest[head] = e.max(largest[head], e.load(F32X16, self.own[head], offset))
            return [*covered, *largest]

        start = [e.constant(F32X16, 0.0)] * self.group + [e.constant(F32X16, MASKED)] * self.group
        carried = e.loop(self.count, start, scores)
        shares = []
        for head in range(self.group):
            total = keys.exponents(self.own[head], carried[self.group + head])
            shares.append(e.select(everything, e.constant(F32, 1.0), e.horizontal_sum(carried[head])))
            factor = e.splat(e.div(shares[-1], total), LANES)
            for channel in range(0, self.value_width, LANES):
                e.store(e.mul(factor, 0.0), self.attended[head], 4 * channel)  # NaN where no score was a number
            self._scale(head, factor)
        e.loop(self.count, [], self._page_values)
        with e.when(e.compare("==", everything, 0)):
            self._add_mean([e.splat(e.sub(1.0, share), LANES) for share in shares])
        for head in range(self.group):
            target = e.at(self.output, 4 * head * self.shape.value_dim)
            store_head(e, self.shape.value_dim, e.pointer(self.attended[head]), e.constant(F32X16, 1.0), target)

    def _scale(self, head: int, factor: Value) -> None:
        """Weights times a factor, in place."""
        e = self.e

        def page(number: Value, _: list[Value]) -> None:
            offset = e.mul(number, 4 * LANES)
            e.store(e.mul(e.load(F32X16, self.own[head], offset), factor), self.own[head], offset)

        e.loop(self.count, [], page)

    def _page_values(self, number: Value, _: list[Value]) -> None:
        """Add the weighted values of a page's keys, those that have a weight."""
        e, shape = self.e, self.shape.recent
        offset = e.mul(number, 4 * LANES)
        rows = [e.at(own, offset) for own in self.own]
        together = e.load(F32X16, rows[0])
        for row in rows[1:]:
            together = e.max(together, e.load(F32X16, row))
        used = e.scratch(4 * LANES)
        e.store(together, used)
        with e.when(e.compare(">", e.horizontal_max(together), 0.0)):
            values = e.at(self.values, e.mul(self.keys.entry(number), shape.value_head_bytes))

            def slot(index: Value, _: list[Value]) -> None:
                with e.when(e.compare(">", e.load(F32, used, e.mul(index, 4)), 0.0)):
                    weights = [e.load_splat(F32, LANES, row, e.mul(index, 4)) for row in rows]
                    for channel in range(0, self.value_width, LANES):
                        value = shape.floats.load_value(e, values, shape.value_dim, index, channel)
                        for weight, sums in zip(weights, self.attended, strict=True):
                            e.store(e.fma(weight, value, e.load(F32X16, sums, 4 * channel)), sums, 4 * channel)

            e.loop(LANES, [], slot)

    def _add_mean(self, factors: list[Value]) -> None:
        """Each head's factor times the mean of all values."""
        e, shape = self.e, self.shape.recent
        keys = e.add(self.keys.last, 1)
        full, rest = e.div(keys, LANES), e.remainder(keys, LANES)
        share = e.splat(e.div(1.0, e.convert(e.convert(keys, I32), F32)), LANES)
        tail = e.at(self.values, e.mul(self.keys.entry(e.sub(self.count, 1)), shape.value_head_bytes))
        channels = range(0, self.value_width, LANES)

        def page(number: Value, totals: list[Value]) -> list[Value]:
            sums = e.at(self.sums, e.mul(self.keys.entry(number), sum_bytes(shape)))
            sums = e.at(sums, e.mul(self.kv_head, 4 * self.value_width))
            return [e.add(total, e.load(F32X16, sums, 4 * c)) for total, c in zip(totals, channels, strict=True)]

        totals = e.loop(full, [e.constant(F32X16, 0.0)] * len(channels), page)
        for channel, total in zip(channels, totals, strict=True):
            mean = e.mul(e.add(total, _page_sum(e, shape, tail, rest, channel)), share)
            for factor, sums in zip(factors, self.attended, strict=True):
                e.store(e.fma(mean, factor, e.load(F32X16, sums, 4 * channel)), sums, 4 * channel)

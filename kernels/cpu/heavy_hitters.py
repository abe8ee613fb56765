"""H2O on the CPU: a place for each row's key in every KV head, and the attention that every key has got.

Keys lie in the pages in any order, since attention does not mind; a row that has no slot of its own takes, in each
head, the place of the key that leaves. See `kernels/selective.py` for which one that is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .attention_shape import AttentionShape
from .compile import KernelSource
from .ir_types import F32, F32X16, I32, I32X16, I64, Value
from .operation import Arguments, Kind, Operation, Rows, load_index, portion
from .page_scores import RowKeys
from .page_types import LANES, PagePool, PagePoolValue
from .run_loop import word
from .softmax import MASKED, RowPlan, key_numbers
from .step_state import GroupWord, Word, group_word

if TYPE_CHECKING:
    from .emit import Emitter

_NEVER = 3.0e38  # more attention than any key gets
_LAST_INDEX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class KeyScores:
    """Where a layer keeps, for each KV head and slot, a key's attention (float32) and its position (int32)."""

    scores: int
    positions: int
    slots: int

    @property
    def fields(self) -> tuple[int, int, int]:
        """As record fields."""
        return self.scores, self.positions, self.slots


def choose_places(*, places: Rows, heads: int, group: int, state: KeyScores, recent: int) -> Operation:
    """The slot of each row and KV head to `places` (int64), with a fresh score; no barrier is needed before storing
    keys, for which the same thread does the same rows and heads."""
    arguments = (*places.fields, heads, 8 * group_word(group, GroupWord.ROWS), *state.fields, recent)
    return Operation(KernelSource("choose_places", "", _choose), arguments, Kind.ROTATE, barrier=False)


def _choose(e: Emitter, record: Value, step: Value, thread: Value) -> None:
    arguments = Arguments(e, record, thread)
    places = arguments.rows()
    heads, group_offset, scores, positions, slots, recent = arguments.integers(6)
    group = e.add(step, group_offset)
    plans, own_slots = e.field(group, GroupWord.ROWS), e.field(group, GroupWord.SLOTS)
    start, stop = portion(e, e.mul(word(e, step, Word.ROWS), heads), step, thread)
    place = e.scratch(8)

    def unit(number: Value, _: list[Value]) -> None:
        row, head = e.div(number, heads), e.remainder(number, heads)
        plan = e.add(plans, e.mul(row, 8 * RowPlan.SIZE))
        position = e.field(plan, RowPlan.POSITION)
        offset = e.mul(e.mul(head, slots), 4)
        slot = e.load(I64, own_slots, e.mul(row, 8))
        e.store(slot, place)
        with e.when(e.compare("<", slot, 0)):
            oldest = e.sub(position, recent)
            e.store(_victim(e, plan, e.add(scores, offset), e.add(positions, offset), oldest), place)
        chosen = e.load(I64, place)
        e.store(chosen, places.row(row), e.mul(head, 8))
        e.store(e.constant(F32, 0.0), e.add(scores, offset), e.mul(chosen, 4))
        e.store(e.convert(position, I32), e.add(positions, offset), e.mul(chosen, 4))

    e.loop(stop, [], unit, start=start)


def _victim(e: Emitter, plan: Value, scores: Value, positions: Value, oldest: Value) -> Value:
    """The slot with the lowest score among keys at positions up to `oldest`; of equal ones the first in the table."""
    table, last = e.field(plan, RowPlan.PAGES), e.field(plan, RowPlan.LAST)
    limit, end = (e.splat(e.convert(value, I32), LANES) for value in (oldest, last))

    def page(number: Value, carried: list[Value]) -> list[Value]:
        best, index = carried
        offset = e.mul(load_index(e, table, number), 4 * LANES)
        numbers = key_numbers(e, e.mul(number, LANES))
        old = e.compare("<=", e.load(I32X16, positions, offset), limit)
        may_leave = e.bit_and(old, e.compare("<=", numbers, end))
        score = e.select(may_leave, e.load(F32X16, scores, offset), _NEVER)
        better = e.compare("<", score, best)
        return [e.select(better, score, best), e.select(better, numbers, index)]

    first = [e.constant(F32X16, _NEVER), e.constant(I32X16, _LAST_INDEX)]
    best, index = e.loop(e.add(e.div(last, LANES), 1), first, page)
    lowest = e.compare("==", best, e.splat(e.horizontal_min(best), LANES))
    # Where a model made NaN of everything no key is the lowest; the place must still be one of the sequence.
    chosen = e.min(e.convert(e.horizontal_min(e.select(lowest, index, _LAST_INDEX)), I64), last)
    entry = load_index(e, table, e.div(chosen, LANES))
    return e.add(e.mul(entry, LANES), e.remainder(chosen, LANES))


def add_attention(
    shape: AttentionShape, *, queries: Rows, pages: PagePool, group: int, state: KeyScores, buffer: Rows
) -> Operation:
    """Add what all rows attend to their keys' scores; `buffer` holds a float for every key that a row may see.

    A KV head belongs to one thread, which goes through the rows in order.
    """
    arguments = (*queries.fields, *pages.fields, 8 * group_word(group, GroupWord.ROWS), *state.fields, *buffer.fields)

    def emit(e: Emitter, record: Value, step: Value, thread: Value) -> None:
        _add(e, record, step, thread, shape)

    return Operation(KernelSource("add_attention", shape.key, emit), arguments, Kind.ATTENTION, barrier=False)


def _add(e: Emitter, record: Value, step: Value, thread: Value, shape: AttentionShape) -> None:
    arguments = Arguments(e, record, thread)
    queries = arguments.rows()
    pages = PagePoolValue(e, shape.recent, arguments.integers(2))
    group_offset, scores, _, slots = arguments.integers(4)
    weights = e.pointer(arguments.rows().address)
    plans = e.field(e.add(step, group_offset), GroupWord.ROWS)
    rows = word(e, step, Word.ROWS)
    start, stop = portion(e, e.integer(shape.pages.heads), step, thread)

    def unit(kv_head: Value, _: list[Value]) -> None:
        own_scores = e.add(scores, e.mul(e.mul(kv_head, slots), 4))

        def head_of_row(number: Value, _: list[Value]) -> None:
            row, index = e.div(number, shape.group), e.remainder(number, shape.group)
            plan = e.add(plans, e.mul(row, 8 * RowPlan.SIZE))
            keys = RowKeys.of(e, shape, pages, plan, kv_head)
            head = e.add(e.mul(kv_head, shape.group), index)
            query = e.at(queries.row(row), e.mul(head, shape.query_stride))

            def scores(number: Value, largest: list[Value]) -> list[Value]:
                (products,) = keys.products(number, [query])
                return [e.max(largest[0], keys.keep_scores(number, products, weights))]

            largest = e.loop(keys.pages, [e.constant(F32X16, MASKED)], scores)[0]
            total = keys.exponents(weights, largest)
            share = e.splat(e.div(1.0, total), LANES)

            def page(number: Value, _: list[Value]) -> None:
                target = e.mul(keys.entry(number), 4 * LANES)
                weight = e.load(F32X16, weights, e.mul(number, 4 * LANES))
                e.store(e.fma(weight, share, e.load(F32X16, own_scores, target)), own_scores, target)

            e.loop(keys.pages, [], page)

        e.loop(e.mul(rows, shape.group), [], head_of_row)

    e.loop(stop, [], unit, start=start)

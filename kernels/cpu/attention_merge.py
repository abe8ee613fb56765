"""Puts together the parts that `attention` left when it divided a row's chunks among threads."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from .attention_shape import AttentionShape, store_head
from .compile import KernelSource
from .ir_types import F32, F32X16, Value
from .operation import Arguments, Kind, Operation, Rows, portion
from .page_types import LANES, padded
from .softmax import LOG2_E, MASKED, merge, merge_factors
from .step_state import GroupWord, group_word

if TYPE_CHECKING:
    from .emit import Emitter


class Merge(IntEnum):
    """Words of a merge: int64, four to a row."""

    ROW = 0
    FIRST_PART = 1
    PART_COUNT = 2
    SIZE = 4


def merge_parts(
    shape: AttentionShape,
    *,
    output: Rows,
    group: int,
    parts: int,
    learned_sinks: int,
    all_threads: bool,
    barrier: bool = True,
) -> Operation:
    """Finish the divided rows of a cache group. `all_threads`: each thread merges everything into its own output."""
    arguments = (*output.fields, 8 * group_word(group, GroupWord.ROWS), parts, learned_sinks, int(all_threads))
    source = KernelSource("merge_parts", shape.key, lambda e, r, s, t: _emit(e, r, s, t, shape))
    return Operation(source, arguments, Kind.ATTENTION, barrier)


def _emit(e: Emitter, record: Value, step: Value, thread: Value, shape: AttentionShape) -> None:
    arguments = Arguments(e, record, thread)
    output = arguments.rows()
    group_offset, parts, learned_sinks, all_threads = arguments.integers(4)
    group = e.add(step, group_offset)
    merges, heads = e.field(group, GroupWord.MERGES), shape.pages.heads * shape.group
    count = e.mul(e.field(group, GroupWord.MERGE_COUNT), heads)
    start, stop = portion(e, count, step, thread)
    everything = e.compare("!=", all_threads, 0)
    width = padded(shape.value_dim)
    sums = e.scratch(4 * width)

    def unit(number: Value, _: list[Value]) -> None:
        entry = e.at(merges, e.mul(e.div(number, heads), 8 * Merge.SIZE))
        head = e.remainder(number, heads)
        first = e.add(parts, e.mul(e.field(entry, Merge.FIRST_PART), shape.part_bytes))
        first = e.add(first, e.mul(head, shape.part_head_bytes))
        for channel in range(0, width, LANES):
            e.store(e.constant(F32X16, 0.0), sums, 4 * channel)
        largest, total = e.constant(F32X16, MASKED), e.constant(F32X16, 0.0)
        if shape.learned_sinks:
            largest = e.mul(e.load_splat(F32, LANES, learned_sinks, e.mul(head, 4)), LOG2_E)
            total = e.constant(F32X16, 1.0)

        def part(index: Value, running: list[Value]) -> list[Value]:
            address = e.at(first, e.mul(index, shape.part_bytes))
            new_largest, new_total = (e.load_splat(F32, LANES, address, 4 * (width + i)) for i in range(2))
            largest, old, new = merge_factors(e, running[0], new_largest)

            def add(channel: Value, _: list[Value]) -> None:
                offset = e.mul(channel, 4)
                value = merge(e, e.load(F32X16, sums, offset), e.load(F32X16, address, offset), old, new)
                e.store(value, sums, offset)

            e.loop(width, [], add, step=LANES)
            return [largest, merge(e, running[1], new_total, old, new)]

        total = e.loop(e.field(entry, Merge.PART_COUNT), [largest, total], part)[1]
        target = e.at(output.row(e.field(entry, Merge.ROW)), e.mul(head, 4 * shape.value_dim))
        store_head(e, shape.value_dim, sums, e.div(1.0, total), target)

    e.loop(e.select(everything, count, stop), [], unit, start=e.select(everything, 0, start))

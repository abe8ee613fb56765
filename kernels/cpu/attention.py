"""Attention of single rows: decode, trees of guesses, and latent attention; all query heads of a KV head together.

A work item is a row and a range of its chunks. With few rows every chunk is an item of its own and leaves a part that
`attention_merge` puts together; with many rows an item is a whole row. Both give the same bits (see `softmax`).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING

from .attention_rows import RowAttention
from .attention_shape import AttentionShape, HeadPages
from .compile import KernelSource
from .ir_types import Value
from .operation import Arguments, Kind, Operation, Rows, portion
from .run_loop import word
from .softmax import (
    RowPlan,
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
    recent: int,
    group: int,
    parts: int,
    learned_sinks: int,
    barrier: bool = True,
) -> Operation:
    """Attend the items of cache group `group`: rotated and scaled queries to `output`, rows of compact heads.

    `pages` is the address of the layer's page 0, `recent` that of page 0 of those that rows are written to, `parts`
    that of the parts, `learned_sinks` that of one float32 logit for each head (16 floats of padding behind them).
    """
    arguments = (
        *(*queries.fields, *sink_queries.fields, *output.fields),
        *(pages, recent, 8 * group_word(group, GroupWord.ROWS), parts, learned_sinks),
    )
    source = KernelSource("attention", shape.key, lambda e, r, s, t: _emit(e, r, s, t, shape))
    return Operation(source, arguments, Kind.ATTENTION, barrier)


def _emit(e: Emitter, record: Value, step: Value, thread: Value, shape: AttentionShape) -> None:
    arguments = Arguments(e, record, thread)
    queries, sink_queries, output = arguments.rows(), arguments.rows(), arguments.rows()
    pages, recent, group_offset, parts, learned_sinks = arguments.integers(5)
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
        head_pages = HeadPages.of(e, shape, pages, recent, kv_head)

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
                    *(e.field(item, Item.FIRST_CHUNK), e.field(item, Item.LAST_CHUNK), *head_pages.all),
                    e.at(output.row(row), e.mul(head, 4 * shape.value_dim)),
                    e.select(e.compare("<", part_number, 0), 0, part_address),
                    e.add(learned_sinks, e.mul(head, 4)),
                ]
                e.outline(f"attend_{together}", lambda i, a: RowAttention(i, shape, together, *a).emit(), values_of)

            return body

        whole = e.mul(e.div(e.sub(last, first), size), size)
        e.loop(e.add(first, whole), [], heads(size), start=first, step=size)
        if size > 1:
            e.loop(last, [], heads(1), start=e.add(first, whole))

    e.loop(stop, [], unit, start=start)


def _query_split(e: Emitter, units: Value, threads: Value, group: int) -> Value:
    """Into how many parts the query heads of a KV head are divided: if without it the threads' shares differ much."""
    rounds = e.div(e.add(units, e.sub(threads, 1)), threads)
    fair = e.compare("<=", e.mul(e.mul(rounds, threads), 4), e.mul(units, 5))
    return e.select(fair, e.integer(1), group)


def heads_together(e: Emitter, shape: AttentionShape) -> int:
    """Query heads that share each load of keys and values: the largest divisor of the group that registers allow."""
    most = min(8, e.isa.token_block)
    return max(n for n in range(1, most + 1) if shape.group % n == 0)

"""Attention of single rows: decode, trees of guesses, and latent attention; all query heads of a KV head together.

A work item is a row and a range of its chunks. With few rows every chunk is an item of its own and leaves a part that
`attention_merge` puts together; with many rows an item is a whole row. Both give the same bits (see `softmax`).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING

from .attention_fetch import NextKeys
from .attention_rows import RowAttention
from .attention_shape import AttentionShape, HeadPages
from .compile import KernelSource
from .ir_types import Value
from .operation import Arguments, Kind, Operation, Rows
from .page_types import LayerPages, PagePoolValue
from .run_loop import word
from .softmax import RowPlan, chunk_of
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
    pages: LayerPages,
    group: int,
    parts: int,
    learned_sinks: int,
    barrier: bool = True,
) -> Operation:
    """Attend the items of cache group `group`: rotated and scaled queries to `output`, rows of compact heads.

    `parts` is the address of the parts, `learned_sinks` that of one float32 logit for each head (16 floats of padding
    behind them).
    """
    arguments = (
        *(*queries.fields, *sink_queries.fields, *output.fields),
        *(*pages.main.fields, *pages.recent.fields),
        *(8 * group_word(group, GroupWord.ROWS), parts, learned_sinks),
    )
    source = KernelSource("attention", shape.key, lambda e, r, s, t: _emit(e, r, s, t, shape))
    return Operation(source, arguments, Kind.ATTENTION, barrier)


def _emit(e: Emitter, record: Value, step: Value, thread: Value, shape: AttentionShape) -> None:
    arguments = Arguments(e, record, thread)
    queries, sink_queries, output = arguments.rows(), arguments.rows(), arguments.rows()
    pages, recent = (PagePoolValue(e, pool, arguments.integers(2)) for pool in (shape.pages, shape.recent))
    group_offset, parts, learned_sinks = arguments.integers(3)
    group = e.add(step, group_offset)
    plans, items, count = (
        e.field(group, GroupWord.ROWS),
        e.field(group, GroupWord.ITEMS),
        e.field(group, GroupWord.ITEM_COUNT),
    )
    kv_heads, size = shape.pages.heads, heads_together(e, shape)
    threads = word(e, step, Word.THREADS)
    split = _query_split(e, e.mul(e.max(e.sub(count, 1), 1), kv_heads), threads, shape.group)
    units = e.mul(e.mul(count, kv_heads), split)

    def place(number: Value) -> tuple[Value, Value, Value, HeadPages, Value]:
        """A unit's part of the query heads, KV head, item, pages and row plan."""
        part, rest = e.remainder(number, split), e.div(number, split)
        kv_head = e.remainder(rest, kv_heads)
        item = e.at(items, e.mul(e.div(rest, kv_heads), 8 * Item.SIZE))
        plan = e.add(plans, e.mul(e.field(item, Item.ROW), 8 * RowPlan.SIZE))
        return part, kv_head, item, HeadPages.of(pages, recent, kv_head), plan

    def keys_of(number: Value) -> NextKeys:
        """The keys that a unit reads first."""
        _, _, item, head_pages, plan = place(number)
        chunk = chunk_of(e, plan, e.field(item, Item.FIRST_CHUNK))
        return NextKeys.of(e, head_pages, e.field(plan, RowPlan.PAGES), chunk)

    def unit(number: Value, _: list[Value]) -> None:
        part, kv_head, item, head_pages, plan = place(number)
        row = e.field(item, Item.ROW)
        first, last = (e.div(e.mul(e.add(part, i), shape.group), split) for i in range(2))
        after = e.add(number, threads)
        following = keys_of(e.select(e.compare("<", after, units), after, number))

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
                    plan,
                    *(e.field(item, Item.FIRST_CHUNK), e.field(item, Item.LAST_CHUNK), *head_pages.all),
                    e.at(output.row(row), e.mul(head, 4 * shape.value_dim)),
                    e.select(e.compare("<", part_number, 0), 0, part_address),
                    e.add(learned_sinks, e.mul(head, 4)),
                    *following.all,
                ]
                e.outline(f"attend_{together}", lambda i, a: RowAttention(i, shape, together, *a).emit(), values_of)

            return body

        whole = e.mul(e.div(e.sub(last, first), size), size)
        e.loop(e.add(first, whole), [], heads(size), start=first, step=size)
        if size > 1:
            e.loop(last, [], heads(1), start=e.add(first, whole))

    # Turn by turn: units of a row's last chunk, often a short one, spread over the threads.
    with e.when(e.compare("<", thread, units)):
        keys_of(thread).fetch(e, shape)
    e.loop(units, [], unit, start=thread, step=threads)


def _query_split(e: Emitter, units: Value, threads: Value, group: int) -> Value:
    """Into how many parts the query heads of a KV head are divided: if without it the threads' shares differ much.

    `units` are those of all items but the last, which may be a short chunk, if there are others. Parts read the same
    keys: with two threads and three KV heads they cost more than a thread that is ahead by a third.
    """
    rounds = e.div(e.add(units, e.sub(threads, 1)), threads)
    fair = e.compare("<=", e.mul(e.mul(rounds, threads), 3), e.mul(units, 4))
    fair = e.bit_or(fair, e.compare("==", threads, 1))
    return e.select(fair, e.integer(1), group)


def heads_together(e: Emitter, shape: AttentionShape) -> int:
    """Query heads that share each load of keys and values: the largest divisor of the group that registers allow."""
    most = min(8, e.isa.token_block)
    return max(n for n in range(1, most + 1) if shape.group % n == 0)

"""Attention of neighbouring rows of a sequence in tiles: prefill, and guesses that are verified.

A tile of few rows is computed by code for small blocks, so that it costs no more than its rows.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from .attention_shape import HeadPages
from .attention_tile import TILE_ROWS, Tile, TileAttention
from .compile import KernelSource
from .operation import Arguments, Kind, Operation, Rows, shares
from .page_types import LayerPages, PagePoolValue
from .softmax import RowPlan
from .step_state import GroupWord, group_word

if TYPE_CHECKING:
    from .attention_shape import AttentionShape
    from .emit import Emitter
    from .ir_types import Value

_CLAIMED_UNITS = 32


def attention_prefill(
    shape: AttentionShape,
    *,
    queries: Rows,
    sink_queries: Rows,
    output: Rows,
    pages: LayerPages,
    group: int,
    learned_sinks: int,
    barrier: bool = True,
) -> Operation:
    """Attend the tiles of a cache group; arguments as for `attention`. Not for latent attention."""
    arguments = (
        *(*queries.fields, *sink_queries.fields, *output.fields),
        *(*pages.main.fields, *pages.recent.fields),
        *(8 * group_word(group, GroupWord.ROWS), learned_sinks),
    )
    source = KernelSource("attention_prefill", shape.key, lambda e, r, s, t: _emit(e, r, s, t, shape))
    return Operation(source, arguments, Kind.ATTENTION, barrier)


def _emit(e: Emitter, record: Value, step: Value, thread: Value, shape: AttentionShape) -> None:
    arguments = Arguments(e, record, thread)
    queries, sink_queries, output = arguments.rows(), arguments.rows(), arguments.rows()
    pages, recent = (PagePoolValue(e, pool, arguments.integers(2)) for pool in (shape.pages, shape.recent))
    group_offset, learned_sinks = arguments.integers(2)
    group = e.add(step, group_offset)
    plans, tiles, count = (
        e.field(group, GroupWord.ROWS),
        e.field(group, GroupWord.TILES),
        e.field(group, GroupWord.TILE_COUNT),
    )
    heads = shape.pages.heads * shape.group
    blocks = (2, 4, 8, TILE_ROWS) if e.isa.token_block >= 8 else (2, 4)

    def unit(number: Value, _: list[Value]) -> None:
        # Neighbouring units are heads of one tile; the host orders the tiles so that shares are fair.
        head, tile = e.remainder(number, heads), e.at(tiles, e.mul(e.div(number, heads), 8 * Tile.SIZE))
        kv_head, row = e.div(head, shape.group), e.field(tile, Tile.FIRST_ROW)
        offset = e.mul(head, shape.query_stride)
        values_of = [
            *(e.at(queries.row(row), offset), queries.stride),
            *(e.at(sink_queries.row(row), offset), sink_queries.stride),
            *(e.add(plans, e.mul(row, 8 * RowPlan.SIZE)), tile),
            *HeadPages.of(pages, recent, kv_head).all,
            *(e.at(output.row(row), e.mul(head, 4 * shape.value_dim)), output.stride),
            e.at(learned_sinks, e.mul(head, 4)),
        ]
        rows, fewer = e.field(tile, Tile.ROW_COUNT), 0
        for block in blocks:
            fits = e.compare(">", rows, fewer)
            if block != blocks[-1]:
                fits = e.bit_and(fits, e.compare("<=", rows, block))
            with e.when(fits):
                e.outline(f"attend_tile_{block}", partial(_attend, shape, block), values_of)
            fewer = block

    def share(start: Value, stop: Value) -> None:
        e.loop(stop, [], unit, start=start)

    units = e.mul(count, heads)
    shares(e, record, step, thread, units, e.compare(">=", units, _CLAIMED_UNITS), share)


def _attend(shape: AttentionShape, block: int, e: Emitter, arguments: list[Value]) -> None:
    TileAttention(e, shape, block, *arguments).emit()

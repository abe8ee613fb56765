"""Rows of a tied embedding table, read out of the head's own tiles, so that the table is in memory once.

A tile can only be multiplied; so it is multiplied with unit vectors, which gives its columns: one of the 16 values of
each is the wanted row's. That is exact, works for every layout, and costs about a microsecond a row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .activation_format import FLOATS, Form, row_bytes
from .activations import HALF_OFFSETS, OFFSET, RECORD_BYTES, SCALE, SCALED_SUM, ZERO_POINT
from .compile import KernelSource
from .ir_types import F32, I64, Value
from .operation import CLAIMED_ROWS, Arguments, Kind, Operation, Rows, float_bits, shares
from .run_loop import word
from .step_state import Word
from .tiles.integer_layout import IntegerLayout

if TYPE_CHECKING:
    import numpy.typing as npt

    from .emit import Emitter
    from .linear import Matrix
    from .tiles.layout import TileLayout

BLOCK = 32
TILE = 16


def embed_rows(matrix: Matrix, *, units: int, tokens: int, target: Rows, scale: float) -> Operation:
    """target[m] = scale * row tokens[m] of the matrix.

    `tokens` is the address of int64 numbers, `units` that of the layout's `unit_rows`.
    """
    super_block = blocks_together(matrix.layout)
    arguments = (matrix.address, matrix.tile_bytes, matrix.blocks, units, tokens, *target.fields, float_bits(scale))
    form: Form = matrix.layout.activation
    unit_bytes = row_bytes(form, super_block)

    def emit(e: Emitter, record: Value, step: Value, thread: Value) -> None:
        values = Arguments(e, record, thread)
        tiles, tile_bytes, blocks, unit_rows, token_list = values.integers(5)
        targets, factor = values.rows(), values.float()
        pieces = e.div(blocks, super_block)
        count = e.isa.token_block
        rows = word(e, step, Word.ROWS)
        scratch = e.scratch(64 * count)

        def unit(number: Value, _: list[Value]) -> None:
            row, piece = e.div(number, pieces), e.remainder(number, pieces)
            token = e.load(I64, token_list, e.mul(row, 8))
            tile = e.add(tiles, e.mul(e.div(token, TILE), tile_bytes))
            lane = e.mul(e.remainder(token, TILE), 4)
            out = e.at(targets.row(row), e.mul(piece, 4 * BLOCK * super_block))

            def columns(first: Value, _: list[Value]) -> None:
                address = e.add(unit_rows, e.mul(first, unit_bytes))
                vectors = [e.pointer(e.add(address, k * unit_bytes)) for k in range(count)]
                start = e.mul(piece, super_block)
                found = matrix.layout.emit_dot(e, e.pointer(tile), super_block, vectors, first=start)
                for k, value in enumerate(found):
                    e.store(value, scratch, 64 * k)
                for k in range(count):
                    value = e.mul(e.load(F32, scratch, lane, 64 * k), factor)
                    e.store(value, out, e.mul(first, 4), 4 * k)

            e.loop(BLOCK * super_block, [], columns, step=count)

        def some(start: Value, stop: Value) -> None:
            e.loop(stop, [], unit, start=start)

        shares(e, record, step, thread, e.mul(rows, pieces), e.compare(">=", rows, CLAIMED_ROWS), some)

    source = KernelSource("embed_rows", f"{matrix.layout.name} {super_block}", emit)
    return Operation(source, arguments, Kind.EMBED)


def blocks_together(layout: TileLayout) -> int:
    """How many blocks of 32 a layout can only multiply together."""
    return layout.scaling.super_block if isinstance(layout, IntegerLayout) else 1


def unit_rows(layout: TileLayout) -> npt.NDArray[np.uint8]:
    """The unit vectors of `blocks_together` blocks, in the form that the layout reads: uint8 [vectors, bytes]."""
    form, super_block = layout.activation, blocks_together(layout)
    size = BLOCK * super_block
    rows = np.zeros((size, row_bytes(form, super_block)), np.uint8)
    if form is FLOATS:
        rows.view(np.float32)[np.arange(size), np.arange(size)] = 1.0
        return rows
    for i in range(size):
        record = rows[i, i // BLOCK * RECORD_BYTES : (i // BLOCK + 1) * RECORD_BYTES]
        record[i % BLOCK] = 1
        for offset, number in ((SCALE, np.float32(1)), (SCALED_SUM, np.float32(1)), (OFFSET, np.int32(-ZERO_POINT))):
            record[offset : offset + 4] = np.frombuffer(number.tobytes(), np.uint8)
        half = HALF_OFFSETS[i % BLOCK // (BLOCK // 2)]
        record[half : half + 4] = np.frombuffer(np.int32(-ZERO_POINT).tobytes(), np.uint8)
    return rows

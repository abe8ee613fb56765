"""What belongs to a neuron in one piece of memory: its down column, its up row, the scales of that row.

For 4-bit codes whose scales are shared by 32 neurons' outputs (down) and by 32 inputs (up). Every bit is the file's;
the codes are in the order in which they are multiplied. The scales of the down matrix lie elsewhere, a vector over the
outputs for each group of neurons.

A column is pieces of 128 outputs (64 bytes), then one of 64 and one of 32 if the width asks for them. Bytes of four
columns are interleaved within 16 bytes at a time, so byte 16 * i + 4 * t + r of a piece of n bytes has output
n / 4 * t + 4 * i + r in its low nibble, and n more in its high one. The order in a row is that of `levels`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from localllm.gguf_io import decompose
from localllm.kernels.cpu.ir_types import F32, Value, vector
from localllm.kernels.cpu.vector_math import load_half

from .codes import UNIT, CodeKind, Codes, codes_of, units_of
from .levels import BLOCK, unit_sizes

if TYPE_CHECKING:
    import numpy.typing as npt

    from localllm.gguf_io import Tensor
    from localllm.kernels.cpu.emit import Emitter

    Bytes = npt.NDArray[np.uint8]

LINE = 64
_ROWS_AT_ONCE = 256
_PIECES = (64, 32, 16)


@dataclass(frozen=True, slots=True)
class RecordRow:
    """Where a row of weights lies in a record: codes, then scales, then minimums. `blocks` of 32 inputs."""

    codes: Codes
    start: int
    blocks: int

    @property
    def padded_blocks(self) -> int:
        """Blocks that the row has codes and scales of."""
        return self.blocks + self.blocks % 2

    @property
    def scales(self) -> int:
        """Where the scales begin."""
        return self.start + self.padded_blocks * BLOCK // 2

    @property
    def minimums(self) -> int:
        """Where the minimums begin."""
        return self.scales + self.padded_blocks * scale_bytes(self.codes)

    @property
    def end(self) -> int:
        """Where the row ends."""
        return self.minimums + self.codes.minimum * self.padded_blocks * scale_bytes(self.codes)


@dataclass(frozen=True, slots=True)
class RecordForm:
    """How a layer's neurons lie in memory; `up` None: there is no up row. Blocks of 32 inputs, units of 32 outputs."""

    up: Codes | None
    down: Codes
    blocks: int
    units: int

    @property
    def column_bytes(self) -> int:
        """Bytes of a column."""
        return self.units * UNIT // 2

    @property
    def row(self) -> RecordRow | None:
        """The up row."""
        return None if self.up is None else RecordRow(self.up, self.column_bytes, self.blocks)

    @property
    def size(self) -> int:
        """Bytes of a record, whole cache lines."""
        end = self.column_bytes if self.row is None else self.row.end
        return -(-end // LINE) * LINE

    @property
    def pieces(self) -> list[int]:
        """Bytes of the pieces of a column."""
        return pieces_of(self.units)


def scale_bytes(codes: Codes) -> int:
    """Bytes of a scale."""
    return 2 if codes.half_scales else 4


def scale_type(codes: Codes) -> type[np.float16] | type[np.float32]:
    """Of the scales."""
    return np.float16 if codes.half_scales else np.float32


def emit_load_scales(e: Emitter, codes: Codes, lanes: int, base: Value, index: int = 0) -> Value:
    """Scales from the `index`-th on as float32."""
    if codes.half_scales:
        return load_half(e, lanes, base, 2 * index)
    return e.load(vector(F32, lanes), base, 4 * index)


def pieces_of(units: int) -> list[int]:
    """Bytes of the pieces of a column of so many units of 32 outputs."""
    left = units * UNIT // 2
    result = [_PIECES[0]] * (left // _PIECES[0])
    return result + [piece for piece in _PIECES[1:] if left & piece]


def row_codes(tensor: Tensor) -> Codes | None:
    """The codes of a matrix whose rows can be multiplied with levels, None for other types."""
    codes = codes_of(tensor.quant_type)
    return codes if codes is not None and codes.kind is CodeKind.NIBBLES and codes.group == BLOCK else None


def record_form(up: Tensor | None, down: Tensor, transposed: bool) -> RecordForm | None:
    """The form of a block with these matrices, None where its numbers do not fit into one."""
    down_codes, up_codes = codes_of(down.quant_type), None if up is None else row_codes(up)
    if transposed or down_codes is None or down_codes.kind is not CodeKind.NIBBLES:
        return None
    if up is not None and up_codes is None:
        return None
    return RecordForm(up_codes, down_codes, 0 if up is None else units_of(up.columns), units_of(down.rows))


def scales_size(form: RecordForm, neurons: int) -> int:
    """Bytes of the down matrix's scales, and of its minimums if it has any; groups beyond the neurons are whole."""
    return units_of(neurons) * UNIT // form.down.group * form.units * UNIT * scale_bytes(form.down)


def pack_records(form: RecordForm, up: Tensor | None, down: Tensor, target: Bytes) -> None:
    """Fill uint8 [neurons * form.size]; what lies between is zero."""
    neurons = down.columns
    records = target.reshape(neurons, form.size)
    records[:] = 0
    at = 0
    for piece in form.pieces:
        first = 2 * at
        rows = down.row_slice(min(first, down.rows), min(first + 2 * piece, down.rows))
        quants = np.full((neurons, 2 * piece), form.down.zero_point, np.uint8)
        if rows.rows:
            quants[:, : rows.rows] = (decompose(rows).quants + np.int8(form.down.zero_point)).view(np.uint8).T
        order = _piece_order(piece)
        records[:, at : at + piece] = quants[:, order] | (quants[:, order + piece] << np.uint8(4))
        at += piece
    if up is not None and form.row is not None:
        pack_record_rows(form.row, up, records)


def _piece_order(piece: int) -> npt.NDArray[np.int64]:
    byte = np.arange(piece)
    lane, place = byte // 16, byte % 16
    return piece // 4 * (place // 4) + 4 * lane + place % 4


def pack_record_rows(row: RecordRow, tensor: Tensor, records: Bytes) -> None:
    """The rows of a matrix into records, uint8 [neurons, bytes]."""
    for start in range(0, tensor.rows, _ROWS_AT_ONCE):
        stop = min(start + _ROWS_AT_ONCE, tensor.rows)
        _pack_rows(row, tensor.row_slice(start, stop), records[start:stop])


def _pack_rows(row: RecordRow, rows: Tensor, records: Bytes) -> None:
    """A row of some neurons into their records."""
    found, count = decompose(rows), rows.rows
    padded = row.padded_blocks
    quants = np.full((count, padded, BLOCK), row.codes.zero_point, np.uint8)
    codes = (found.quants + np.int8(row.codes.zero_point)).view(np.uint8)
    quants[:, : row.blocks] = codes.reshape(count, row.blocks, BLOCK)
    first, at = 0, row.start
    for size in unit_sizes(row.blocks):
        lanes = 16 // size
        dwords = quants[:, first : first + size].reshape(count, size, size // 2, lanes, 4)
        vectors = dwords.transpose(0, 2, 3, 1, 4).reshape(count, size // 2, 64)
        if size == 2:
            low, high = vectors[:, 0, :32], vectors[:, 0, 32:]
        else:
            low, high = (vectors[:, k::2].reshape(count, -1) for k in range(2))
        end = at + size * BLOCK // 2
        records[:, at:end] = low | (high << np.uint8(4))
        first, at = first + size, end
    for start, values in ((row.scales, found.scales), (row.minimums, found.minimums)):
        if values is not None:
            numbers = values.astype(scale_type(row.codes)).view(np.uint8)
            records[:, start : start + numbers.shape[1]] = numbers


def pack_scales(form: RecordForm, down: Tensor, scales: Bytes, minimums: Bytes) -> None:
    """Fill the scales of the down matrix, [groups, outputs], and its minimums."""
    for start in range(0, down.rows, _ROWS_AT_ONCE):
        rows = down.row_slice(start, min(start + _ROWS_AT_ONCE, down.rows))
        found = decompose(rows)
        for target, values in ((scales, found.scales), (minimums, found.minimums)):
            if values is not None and len(target):
                numbers = target.view(scale_type(form.down)).reshape(-1, form.units * UNIT)
                numbers[: values.shape[1], start : start + rows.rows] = values.T

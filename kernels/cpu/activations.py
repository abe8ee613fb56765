"""Activation rows as kernels read them: 8-bit records a block of 32 values, or plain float32.

A record (RECORD_BYTES long, at any 4-byte boundary) holds 32 int8 values q and what zero points and minimums need:

    0   int8[32]  q = round(x / scale), |q| <= 127
    32  float32   scale = max |x| / 127
    36  float32   scale * sum(q)
    40  int32     -128 * sum(q)
    44  int32     -128 * sum(q[:16])
    48  int32     -128 * sum(q[16:])

Codes are stored so that, aligned to the top of their byte, their zero point is 128: the sums are ready to start from.

A row of records is `columns / 32` of them, one after the other. Rows that come out of a norm have a few channels that
are far larger than all others, and blocks that hold one are rounded coarsely. Behind such a row lie *refinements*
(REFINEMENT_BYTES each) of its blocks with the largest scales: the record of x - scale * q, then the block's number.
"""

from __future__ import annotations

from .emit import Emitter
from .ir_types import F32, I8, Value
from .vector_math import round_to_integer

BLOCK = 32
RECORD_BYTES = 52
REFINEMENT_BYTES = RECORD_BYTES + 4
SCALE, SCALED_SUM, OFFSET, HALF_OFFSETS = 32, 36, 40, (44, 48)
ZERO_POINT = 128


def emit_quantize_block(e: Emitter, low: Value, high: Value, record: Value) -> None:
    """Quantise 32 float32 values (two vectors of 16) into a record. NaN in gives a scale of NaN."""
    largest = e.horizontal_max(e.max(e.abs(low), e.abs(high)))
    nonzero = e.compare(">", largest, 0.0)
    inverse = e.splat(e.select(nonzero, e.div(127.0, largest), 0.0), 16)
    scale = e.mul(largest, 1.0 / 127.0)
    sums = []
    for half, x in enumerate((low, high)):
        quants = round_to_integer(e, e.mul(x, inverse))
        e.store(e.convert(quants, I8), record, 16 * half)
        total = e.horizontal_sum(quants)
        e.store(e.mul(total, -ZERO_POINT), record, HALF_OFFSETS[half])
        sums.append(total)
    total = e.add(*sums)
    e.store(scale, record, SCALE)
    e.store(e.mul(scale, e.convert(total, F32)), record, SCALED_SUM)
    e.store(e.mul(total, -ZERO_POINT), record, OFFSET)

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

from collections.abc import Callable, Sequence

from .emit import Emitter
from .ir_types import F32, F32X16, I8, I32, I64, Offset, Value, vector
from .vector_math import lane_maxima, round_to_integer

BLOCK = 32
RECORD_BYTES = 52
REFINEMENT_BYTES = RECORD_BYTES + 4
SCALE, SCALED_SUM, OFFSET, HALF_OFFSETS = 32, 36, 40, (44, 48)
ZERO_POINT = 128


def emit_quantize_block(e: Emitter, low: Value, high: Value, record: Value) -> None:
    """Quantise 32 float32 values (two vectors of 16) into a record. NaN in gives a scale of NaN."""
    largest = e.horizontal_max(e.max(e.abs(low), e.abs(high)))
    inverse, scale = _scales(e, largest)
    _emit_record(e, (low, high), e.splat(inverse, 16), scale, record)


def emit_quantize_rows(e: Emitter, count: int, values: Value, record: Callable[[Value], Value]) -> None:
    """The same for `count` blocks (a power of two, at most 16) of float32 [count, 32]; `record(i)` says where to.

    Their maxima are found together: about half the instructions of finding one after the other.
    """
    scales, places = e.scratch(128), 64 // count

    def halves(i: Offset) -> list[Value]:
        return [e.load(F32X16, values, e.mul(e.integer(i), 128), k) for k in (0, 64)]

    largest = lane_maxima(e, [e.max(*(e.abs(half) for half in halves(i))) for i in range(count)])
    for k, vector_of in enumerate(_scales(e, largest)):
        e.store(vector_of, scales, 64 * k)

    def one(i: Value, _: list[Value]) -> None:
        at = e.mul(i, places)
        _emit_record(e, halves(i), e.load_splat(F32, 16, scales, at), e.load(F32, scales, at, 64), record(i))

    e.loop(count, [], one)


def _scales(e: Emitter, largest: Value) -> tuple[Value, Value]:
    """What values are multiplied with to be codes, and codes to be values."""
    inverse = e.div(e.constant(largest.type, 127.0), largest)
    return e.select(e.compare(">", largest, 0.0), inverse, 0.0), e.mul(largest, 1.0 / 127.0)


def _emit_record(e: Emitter, halves: Sequence[Value], inverse: Value, scale: Value, record: Value) -> None:
    quants = [round_to_integer(e, e.mul(half, inverse)) for half in halves]
    narrow = [e.convert(half, I8) for half in quants]
    for half, codes in enumerate(narrow):
        e.store(codes, record, 16 * half)
    if e.isa.byte_shuffle:  # AVX2 sums bytes faster than a tree of 32-bit lanes does
        sums = _sums_of_bytes(e, e.concatenate(*narrow))
    else:
        sums = [e.horizontal_sum(half) for half in quants]
    for offset, total in zip(HALF_OFFSETS, sums, strict=True):
        e.store(e.mul(total, -ZERO_POINT), record, offset)
    total = e.add(*sums)
    e.store(scale, record, SCALE)
    e.store(e.mul(scale, e.convert(total, F32)), record, SCALED_SUM)
    e.store(e.mul(total, -ZERO_POINT), record, OFFSET)


def _sums_of_bytes(e: Emitter, codes: Value) -> list[Value]:
    """The sums of the first and of the last 16 of 32 int8, as int32: psadbw adds the bytes of each eighth."""
    unsigned, kind = e.bit_xor(codes, -ZERO_POINT), vector(I64, 4)
    eighths = e.call("llvm.x86.avx2.psad.bw", kind, unsigned, e.constant(codes.type, 0))
    halves = e.add(eighths, e.shuffle(eighths, (1, 0, 3, 2)))
    return [e.sub(e.convert(e.lane(halves, 2 * half), I32), 16 * ZERO_POINT) for half in range(2)]

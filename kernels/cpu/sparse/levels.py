"""Activation rows as two levels of int8: x = scale * (256 * high + low), 16 bits of the row's largest value.

Rows of codes are multiplied with them 16 int32 lanes at a time, and a lane never mixes inputs of different scales: a
unit is 16 blocks of 32 inputs with a lane each, then come smaller ones of 8, 4 and 2 blocks, whose blocks have 2, 4 and
8 lanes. Dword w (4 inputs) of block j lies in vector w // L, lane (w % L) * blocks + j; L is the lanes of a block.

A row is a float32 scale (64 bytes with what pads it), then the units: 16 int32 (for each block the sum of its values:
times minus the zero point where there is one), then for each vector its high and its low bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from localllm.kernels.cpu.compile import KernelSource
from localllm.kernels.cpu.ir_types import F32, F32X16, I8, I32, I32X16, Value, vector
from localllm.kernels.cpu.operation import Arguments, Kind, Operation, Rows, Share
from localllm.kernels.cpu.vector_math import round_to_integer

if TYPE_CHECKING:
    from localllm.kernels.cpu.emit import Emitter

BLOCK = 32
HEADER = 64
SUMS = 64  # bytes of a unit before its vectors
LARGEST = 127 * 256  # both levels fit into int8
_SIZES = (16, 8, 4, 2)


def unit_sizes(blocks: int) -> list[int]:
    """Blocks of each unit; an odd last block gets one of zeros beside it."""
    sizes, left = [], blocks + blocks % 2
    for size in _SIZES:
        sizes += [size] * (left // size)
        left %= size
    return sizes


def unit_bytes(size: int) -> int:
    """Bytes of a unit of so many blocks in a row of levels."""
    return SUMS + 2 * BLOCK * size


def levels_bytes(blocks: int) -> int:
    """Bytes of a row."""
    return HEADER + sum(map(unit_bytes, unit_sizes(blocks)))


def emit_levels(e: Emitter, values: Value) -> tuple[Value, Value]:
    """High and low bytes of int32 lanes of magnitude at most LARGEST."""
    low = e.shift_right(e.shift_left(values, 24), 24, signed=True)
    high = e.shift_right(e.sub(values, low), 8, signed=True)
    return e.convert(high, I8), e.convert(low, I8)


def emit_scale(e: Emitter, largest: Value) -> tuple[Value, Value]:
    """What turns values into levels, and levels into values; of scalars."""
    inverse = e.div(e.constant(F32, float(LARGEST)), largest)
    return e.select(e.compare(">", largest, 0.0), inverse, 0.0), e.mul(largest, 1.0 / LARGEST)


def level_rows(
    *, source: Rows, target: Rows, blocks: int, zero_point: int, share: Share, kind: Kind, barrier: bool
) -> Operation:
    """Float32 rows of `blocks` blocks as levels; `zero_point` is that of the codes they are multiplied with."""
    sizes = unit_sizes(blocks)
    factor = -zero_point or 1

    def emit(e: Emitter, record: Value, step: Value, thread: Value) -> None:
        values = Arguments(e, record, thread)
        sources, targets = values.rows(), values.rows()
        start, stop = values.share(step)

        def row(m: Value, _: list[Value]) -> None:
            x, out = sources.row(m), targets.row(m)

            def look(at: Value, largest: list[Value]) -> list[Value]:
                return [e.max(e.abs(e.load(F32X16, x, at)), largest[0])]

            largest = e.loop(4 * BLOCK * blocks, [e.constant(F32X16, 0.0)], look, step=64)[0]
            inverse, scale = emit_scale(e, e.horizontal_max(largest))
            e.store(scale, out)
            many = sizes.count(_SIZES[0])

            def full(i: Value, _: list[Value]) -> None:
                at = e.add(e.mul(i, unit_bytes(_SIZES[0])), HEADER)
                unit(_SIZES[0], _SIZES[0], e.at(x, e.mul(i, 4 * BLOCK * _SIZES[0])), e.at(out, at))

            def unit(size: int, real: int, inputs: Value, address: Value) -> None:
                cleared = SUMS if real == size else unit_bytes(size)
                for at in range(0, cleared, 64):
                    e.store(e.constant(I32X16, 0), address, at)
                e.loop(real, [], lambda j, _: _emit_block(e, size, j, inputs, address, inverse, factor))

            e.loop(many, [], full)
            done, at = many * _SIZES[0], HEADER + many * unit_bytes(_SIZES[0])
            for size in sizes[many:]:
                unit(size, min(size, blocks - done), e.at(x, 4 * BLOCK * done), e.at(out, at))
                done, at = done + size, at + unit_bytes(size)

        e.loop(stop, [], row, start=start)

    arguments = (*source.fields, *target.fields, *share.fields)
    return Operation(KernelSource("level_rows", f"{blocks} {zero_point}", emit), arguments, kind, barrier)


def _emit_block(
    e: Emitter, size: int, number: Value, inputs: Value, address: Value, inverse: Value, factor: int
) -> None:
    """32 inputs to their places in a unit."""
    lanes, scale = 16 // size, e.splat(inverse, 16)
    here, at = e.at(inputs, e.mul(number, 4 * BLOCK)), e.at(address, e.mul(number, 4))
    halves = [round_to_integer(e, e.mul(e.load(F32X16, here, 64 * k), scale)) for k in range(2)]
    e.store(e.mul(e.horizontal_sum(e.add(*halves)), factor), at)
    for k, half in enumerate(halves):
        for level, narrow in enumerate(emit_levels(e, half)):
            dwords = e.bitcast(narrow, vector(I32, 4))
            for i in range(4):
                place, lane = divmod(4 * k + i, lanes)
                e.store(e.lane(dwords, i), at, SUMS + 128 * place + 64 * level + 4 * size * lane)

"""Sums of products of 16-bit integers, two neighbours for each 32-bit lane, on every instruction set."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .ir_types import F32, I16, I32, I32X16, Value, vector
from .isa import DotProduct

if TYPE_CHECKING:
    from .emit import Emitter

I16X32 = vector(I16, 32)
LARGEST = 32767  # of a multiplier
_TO_INTEGER = 12582912.0  # 1.5 * 2**23: added to a small float, it leaves the rounded integer in the low bits


def multiplier_limit(largest_code: int, products: int) -> int:
    """The largest multiplier for which the sum of so many products with such codes fits into 32 bits."""
    return min(LARGEST, ((1 << 31) - 1) // (largest_code * products))


def round_to_pairs(e: Emitter, values: Value) -> tuple[Value, Value]:
    """16 floats of at most 32767 rounded to integers: as int16 lanes, and as floats again."""
    shifted = e.add(values, _TO_INTEGER)
    return e.convert(e.bitcast(shifted, I32X16), I16), e.sub(shifted, _TO_INTEGER)


def emit_pair_dot(e: Emitter, total: Value, codes: Value, multipliers: Value) -> Value:
    """total + the products of both int16 of each lane of `codes` (not negative) with those at `multipliers`.

    `codes` is int16 [32], `multipliers` the address of two int16 for all lanes, `total` int32 [16].
    """
    dot = e.isa.dot_product
    if dot is DotProduct.VNNI_512:
        pair = e.bitcast(e.load_splat(I32, 16, multipliers), I16X32)
        return e.call("llvm.x86.avx512.vpdpwssd.512", I32X16, total, codes, pair)
    if dot in (DotProduct.VNNI_256, DotProduct.MADDUBS):
        pair = e.bitcast(e.load_splat(I32, 8, multipliers), vector(I16, 16))
        halves = [e.call("llvm.x86.avx2.pmadd.wd", vector(I32, 8), e.part(codes, half, 2), pair) for half in range(2)]
        return e.add(total, e.concatenate(*halves))
    lanes = e.bitcast(codes, I32X16)
    pair = e.load(I32, multipliers)
    low = e.shift_right(e.shift_left(pair, 16), 16, signed=True)
    high = e.shift_right(pair, 16, signed=True)
    low_products = e.mul(e.bit_and(lanes, 0xFFFF), e.splat(low, 16))
    high_products = e.mul(e.shift_right(lanes, 16), e.splat(high, 16))
    return e.add(total, e.add(low_products, high_products))


def largest_of(e: Emitter, lanes: Value) -> Value:
    """The largest of 16 floats >= 0, but never zero, to divide by."""
    return e.max(e.horizontal_max(lanes), e.constant(F32, 1e-30))

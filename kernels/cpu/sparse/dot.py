"""Products of nibbles and levels: int32 lanes, exact on every instruction set."""

from __future__ import annotations

from typing import TYPE_CHECKING

from localllm.kernels.cpu.ir_types import I16, I32, Value, vector
from localllm.kernels.cpu.isa import DotProduct

if TYPE_CHECKING:
    from collections.abc import Sequence

    from localllm.kernels.cpu.emit import Emitter


def high_exponent(e: Emitter) -> int:
    """High nibbles come times this power of two: where products cannot overflow, sums are shifted and not codes."""
    return 4 if e.isa.dot_product in (DotProduct.VNNI_512, DotProduct.VNNI_256) else 0


def emit_nibbles(e: Emitter, raw: Value) -> tuple[Value, Value]:
    """The low nibbles of bytes, and the high ones, see `high_exponent`."""
    low = e.bit_and(raw, 15)
    if high_exponent(e):
        return low, e.bit_and(raw, -16)
    return low, emit_shifted(e, e.bit_and(raw, -16), 4)


def emit_shifted(e: Emitter, high: Value, exponent: int) -> Value:
    """Bytes whose low nibbles are zero, shifted to the right."""
    wide = e.bitcast(high, vector(I16, high.type.count // 2))
    return e.bitcast(e.shift_right(wide, exponent), high.type)


def emit_dot(e: Emitter, total: Value, codes: Value, levels: Value) -> Value:
    """total + the sums of four products of unsigned codes and signed levels, lane by lane."""
    size, lanes = codes.type.count, total.type.count
    kind = e.isa.dot_product
    if kind is DotProduct.VNNI_512 or (kind is DotProduct.VNNI_256 and size <= 32):
        return e.call(f"llvm.x86.avx512.vpdpbusd.{8 * size}", total.type, total, codes, levels)
    if kind is not DotProduct.PLAIN and size > 32:
        halves = [emit_dot(e, *(e.part(value, i, 2) for value in (total, codes, levels))) for i in range(2)]
        return e.concatenate(*halves)
    if kind is DotProduct.MADDUBS:
        names = {32: ("avx2.pmadd.ub.sw", "avx2.pmadd.wd"), 16: ("ssse3.pmadd.ub.sw.128", "sse2.pmadd.wd")}[size]
        pairs = e.call(f"llvm.x86.{names[0]}", vector(I16, size // 2), codes, levels)
        return e.add(total, e.call(f"llvm.x86.{names[1]}", total.type, pairs, e.constant(pairs.type, 1)))
    wide_codes, wide_levels = (e.bitcast(value, vector(I16, size // 2)) for value in (codes, levels))
    even = e.mul(e.bit_and(wide_codes, 255), e.shift_right(e.shift_left(wide_levels, 8), 8, signed=True))
    odd = e.mul(e.shift_right(wide_codes, 8), e.shift_right(wide_levels, 8, signed=True))
    for product in (even, odd):
        pairs = e.bitcast(product, vector(I32, lanes))
        low = e.shift_right(e.shift_left(pairs, 16), 16, signed=True)
        total = e.add(total, e.add(low, e.shift_right(pairs, 16, signed=True)))
    return total


def emit_whole(e: Emitter, levels: Sequence[Value]) -> Value:
    """256 * high + low of two sums."""
    return e.add(e.shift_left(levels[0], 8), levels[1])

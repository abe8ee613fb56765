"""Packed weights to tiles of numbers, for tensor cores: two tiles [BN, 32 PB] of PB pairs of columns.

Byte i of a pair holds columns 64p + i (low nibble) and 64p + 32 + i (high nibble), i < 32: the first tile is all low
columns, the second all high ones. Both keep the order of memory, so nothing is shuffled; the other operand is read at
the same columns.
"""

import triton
import triton.language as tl

from .common import GROUP, HALF_MINIMUM, HAS_PTX, SUPER, SUPER_SIGNED
from .unpack import has_minimum, high_half, low_half, zero_point


@triton.jit
def _small_integer(n, zero: tl.constexpr, TYPE: tl.constexpr):
    """uint8 n - zero as TYPE without an integer conversion: 0x6400 | n is the float16 1024 + n."""
    return ((n.to(tl.uint16) | 0x6400).to(tl.float16, bitcast=True) - (1024.0 + zero)).to(TYPE)


@triton.jit
def _nibbles(byte, low_scale, high_scale, EIGHT: tl.constexpr):
    """The low and the high nibbles of uint8 as float16, 8 less with EIGHT, times scales: four bytes at a time."""
    if EIGHT:
        return tl.inline_asm_elementwise(
            """{ .reg .b32 l, h, o, z; mov.b32 o, 0x64646464; mov.b32 z, 0xe408e408;
            and.b32 l, $4, 0x0f0f0f0f; shr.u32 h, $4, 4; and.b32 h, h, 0x0f0f0f0f;
            prmt.b32 $0, l, o, 0x4140; prmt.b32 $1, l, o, 0x4342; prmt.b32 $2, h, o, 0x4140; prmt.b32 $3, h, o, 0x4342;
            add.rn.f16x2 $0, $0, z; add.rn.f16x2 $1, $1, z; add.rn.f16x2 $2, $2, z; add.rn.f16x2 $3, $3, z;
            mul.rn.f16x2 $0, $0, $5; mul.rn.f16x2 $1, $1, $6; mul.rn.f16x2 $2, $2, $7; mul.rn.f16x2 $3, $3, $8; }""",
            "=&r,=&r,=&r,=&r,r,r,r,r,r",
            [byte, low_scale, high_scale],
            dtype=(tl.float16, tl.float16),
            is_pure=True,
            pack=4,
        )
    else:
        return tl.inline_asm_elementwise(
            """{ .reg .b32 l, h, o, z; mov.b32 o, 0x64646464; mov.b32 z, 0xe400e400;
            and.b32 l, $4, 0x0f0f0f0f; shr.u32 h, $4, 4; and.b32 h, h, 0x0f0f0f0f;
            prmt.b32 $0, l, o, 0x4140; prmt.b32 $1, l, o, 0x4342; prmt.b32 $2, h, o, 0x4140; prmt.b32 $3, h, o, 0x4342;
            add.rn.f16x2 $0, $0, z; add.rn.f16x2 $1, $1, z; add.rn.f16x2 $2, $2, z; add.rn.f16x2 $3, $3, z;
            mul.rn.f16x2 $0, $0, $5; mul.rn.f16x2 $1, $1, $6; mul.rn.f16x2 $2, $2, $7; mul.rn.f16x2 $3, $3, $8; }""",
            "=&r,=&r,=&r,=&r,r,r,r,r,r",
            [byte, low_scale, high_scale],
            dtype=(tl.float16, tl.float16),
            is_pure=True,
            pack=4,
        )


@triton.jit
def _spread(s, BN: tl.constexpr, PB: tl.constexpr, GROUPS: tl.constexpr):
    """Scales [BN, PB, GROUPS] to one a column [BN, 32 PB]."""
    return tl.reshape(tl.broadcast_to(s[:, :, :, None], [BN, PB, GROUPS, 32 // GROUPS]), [BN, PB * 32])


@triton.jit
def tile_scales(
    scales, supers, row, p0, KP: tl.constexpr, BN: tl.constexpr, PB: tl.constexpr, FORM: tl.constexpr,
    MASK: tl.constexpr,
):
    """Scales of the low and high columns and minimums of both, float32 [BN, PB, groups of a block]."""
    p = p0 + tl.arange(0, PB)
    ok = (p < KP // 64)[None, :]
    WORDS: tl.constexpr = 8 if FORM == GROUP else (2 if FORM == HALF_MINIMUM else 1)
    at = (
        scales
        + (row // 4).to(tl.int64)[:, None] * (KP // 64 * WORDS * 4)
        + (p * (WORDS * 4))[None, :]
        + (row % 4)[:, None]
    )
    if FORM == GROUP:
        g = (tl.arange(0, 2) * 4)[None, None, :]
        at3, ok3 = at[:, :, None] + g, ok[:, :, None]
        s0 = tl.load(at3, mask=ok3, other=0).to(tl.float32, bitcast=True)
        s1 = tl.load(at3 + 8, mask=ok3, other=0).to(tl.float32, bitcast=True)
        s2 = tl.load(at3 + 16, mask=ok3, other=0).to(tl.float32, bitcast=True)
        s3 = tl.load(at3 + 24, mask=ok3, other=0).to(tl.float32, bitcast=True)
        return s0, s1, s2, s3
    else:
        if MASK:
            word = tl.load(at, mask=ok, other=0)
        else:
            word = tl.load(at)
        if FORM == HALF_MINIMUM:
            m = tl.load(at + 4, mask=ok, other=0)
            return (
                low_half(word)[:, :, None],
                high_half(word)[:, :, None],
                low_half(m)[:, :, None],
                high_half(m)[:, :, None],
            )
        elif FORM == SUPER or FORM == SUPER_SIGNED:
            factor = tl.load(
                supers + (row // 4)[:, None] * (KP // 256 * 4) + (p // 4 * 4)[None, :] + (row % 4)[:, None],
                mask=ok,
                other=0,
            )
            d = low_half(factor)
            if FORM == SUPER:
                m = -high_half(factor)
                low, high = d * (word & 0xFF).to(tl.float32), d * ((word >> 16) & 0xFF).to(tl.float32)
                low_m, high_m = m * ((word >> 8) & 0xFF).to(tl.float32), m * ((word >> 24) & 0xFF).to(tl.float32)
                return low[:, :, None], high[:, :, None], low_m[:, :, None], high_m[:, :, None]
            else:
                mine = word[:, :, None] >> (tl.arange(0, 2) * 8)[None, None, :]
                d = d[:, :, None]
                low, high = d * ((mine << 24) >> 24).to(tl.float32), d * ((mine << 8) >> 24).to(tl.float32)
                return low, high, low, high
        else:
            low, high = low_half(word)[:, :, None], high_half(word)[:, :, None]
            return low, high, low, high


@triton.jit
def tile_quants(
    quants, high, row, p0, KP: tl.constexpr, BN: tl.constexpr, PB: tl.constexpr, BITS: tl.constexpr, MASK: tl.constexpr,
    TYPE: tl.constexpr,
):
    """The quants of the low and of the high columns, uint8 [BN, 32 PB]; signed ones are 128 too high."""
    k = tl.arange(0, PB * 32)
    p, i = p0 + k // 32, k % 32
    ok = (p < KP // 64)[None, :]
    base = row.to(tl.int64)[:, None]
    if BITS == 8:
        at = quants + base * KP + (p * 64 + i)[None, :]
        if MASK:
            return tl.load(at, mask=ok, other=0) ^ 0x80, tl.load(at + 32, mask=ok, other=0) ^ 0x80
        else:
            return tl.load(at) ^ 0x80, tl.load(at + 32) ^ 0x80
    else:
        at = quants + base * (KP // 2) + (p0 * 32 + k)[None, :]
        if MASK:
            byte = tl.load(at, mask=ok, other=0)
        else:
            byte = tl.load(at)
        if BITS == 4 and TYPE == tl.float16 and HAS_PTX:
            return byte, byte  # `_nibbles` takes them apart
        first, second = byte & 15, byte >> 4
        if BITS == 6:
            bits = (
                tl.load(high + base * (KP // 4) + (p * 16 + i % 16)[None, :], mask=ok, other=0)
                >> (i // 16 * 4).to(tl.uint8)[None, :]
            )
            first, second = first | ((bits & 3) << 4), second | ((bits & 12) << 2)
        elif BITS == 5:
            bits = (
                tl.load(high + base * (KP // 8) + (p * 8 + i % 8)[None, :], mask=ok, other=0)
                >> (i // 8 * 2).to(tl.uint8)[None, :]
            )
            first, second = first | ((bits & 1) << 4), second | ((bits & 2) << 3)
        return first, second


@triton.jit
def tile_weights(
    quants, high, scales, supers, row, p0, KP: tl.constexpr, BN: tl.constexpr, PB: tl.constexpr, BITS: tl.constexpr,
    FORM: tl.constexpr, TYPE: tl.constexpr,
):
    """Weights of rows `row` [BN] at the low and the high columns of pairs p0..p0+PB, two TYPE tiles [BN, 32 PB]."""
    MASK: tl.constexpr = (KP // 64) % PB != 0
    if BITS >= 16:
        k = tl.arange(0, PB * 32)
        p = p0 + k // 32
        at = quants + row.to(tl.int64)[:, None] * KP + (p * 64 + k % 32)[None, :]
        if MASK:
            ok = (p < KP // 64)[None, :]
            return tl.load(at, mask=ok, other=0.0).to(TYPE), tl.load(at + 32, mask=ok, other=0.0).to(TYPE)
        else:
            return tl.load(at).to(TYPE), tl.load(at + 32).to(TYPE)
    else:
        first, second = tile_quants(quants, high, row, p0, KP, BN, PB, BITS, MASK, TYPE)
        a0, a1, m0, m1 = tile_scales(scales, supers, row, p0, KP, BN, PB, FORM, MASK)
        GROUPS: tl.constexpr = 2 if FORM == SUPER_SIGNED or FORM == GROUP else 1
        ZERO: tl.constexpr = 128.0 if BITS == 8 else zero_point(BITS, FORM)
        if FORM == GROUP:  # these scales may not fit into a half
            low = _small_integer(first, ZERO, tl.float32) * _spread(a0, BN, PB, GROUPS) + _spread(m0, BN, PB, GROUPS)
            far = _small_integer(second, ZERO, tl.float32) * _spread(a1, BN, PB, GROUPS) + _spread(m1, BN, PB, GROUPS)
            return low.to(TYPE), far.to(TYPE)
        else:
            low, far = _spread(a0.to(TYPE), BN, PB, GROUPS), _spread(a1.to(TYPE), BN, PB, GROUPS)
            if BITS == 4 and HAS_PTX and TYPE == tl.float16:
                low, far = _nibbles(first, low, far, ZERO == 8.0)
            else:
                low, far = _small_integer(first, ZERO, TYPE) * low, _small_integer(second, ZERO, TYPE) * far
            if has_minimum(FORM):
                low += _spread(m0.to(TYPE), BN, PB, GROUPS)
                far += _spread(m1.to(TYPE), BN, PB, GROUPS)
            return low, far

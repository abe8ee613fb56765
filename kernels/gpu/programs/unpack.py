"""Packed weights to numbers, inside registers, for products of one or a few rows.

A *unit* u is what one thread takes of a row at a time: 16 low and 16 high columns of pair p = u // 2, half g = u % 2,
that is columns 64p + 16g + 0..15 and 64p + 32 + 16g + 0..15. Tiles are [U, W, G, 4, 4]: units, warps side by side that
take different rows, row groups of a thread, rows of a group, words. Lanes run along the units, so all sums but the last
stay inside a thread. Scales are stored for 4 rows side by side and activations are loaded once per W, which makes their
tiles [U, W, G, 4] and [U, W, 4] slices of the weights' layout: nothing passes through shared memory.

Triton lets lanes, then warps, run along the dimensions in the order of how many neighbours in memory it sees along
each: here 1 for all but the last, and which of them comes first in a tie depends on its version. The numbers given to
`tl.max_contiguous` decide: the last dimension first, then U, W, G, rows. Only that of the last dimension, cut to what
its size and alignment allow, says how much is loaded at once; the others are nothing but that order.
"""

import triton
import triton.language as tl

from localllm.kernels.gpu.families import Form

from .common import GROUP, HALF, HALF_MINIMUM, SUPER, SUPER_SIGNED, dot4


@triton.constexpr_function
def zero_point(bits, form):
    """The quant that means 0, as a float (families.Family.zero)."""
    if form == Form.SUPER_SIGNED:
        return 32.0
    return {4: 8.0, 5: 16.0}.get(bits, 0.0) if form == Form.HALF else 0.0


@triton.constexpr_function
def has_minimum(form):
    """Whether blocks carry a minimum."""
    return form in (Form.HALF_MINIMUM, Form.SUPER, Form.GROUP)


@triton.jit
def _masked(pointer, ok, MASK: tl.constexpr):
    if MASK:
        return tl.load(pointer, mask=ok, other=0, eviction_policy="evict_first")
    else:
        return tl.load(pointer, eviction_policy="evict_first")


@triton.jit
def load_unit(
    quants, high, scales, supers, row0, u0, KP: tl.constexpr, U: tl.constexpr, W: tl.constexpr, G: tl.constexpr,
    BITS: tl.constexpr, FORM: tl.constexpr,
):
    """Request units u0..u0+U of 4WG rows: (words, more words, high bits, four scale words), not yet looked at."""
    MASK: tl.constexpr = (KP // 32) % U != 0
    u = u0 + tl.arange(0, U)
    group = tl.arange(0, W)[:, None] * G + tl.arange(0, G)[None, :]
    row = (group[:, :, None] * 4 + tl.arange(0, 4)[None, None, :])[None, :, :, :, None]
    j = tl.arange(0, 4)
    ok4 = (u < KP // 32)[:, None, None, None]
    ok5 = (u < KP // 32)[:, None, None, None, None]
    base = row0.to(tl.int64)
    if BITS == 8:
        at = quants + base * (KP // 4) + row * (KP // 4)
        at += (u // 2 * 16 + u % 2 * 4)[:, None, None, None, None] + j[None, None, None, None, :]
        words = _masked(tl.max_contiguous(at, (8, 4, 2, 1, 16)), ok5, MASK)
        more = _masked(tl.max_contiguous(at + 8, (8, 4, 2, 1, 16)), ok5, MASK)
    else:
        at = quants + base * (KP // 8) + row * (KP // 8)
        at += (u * 4)[:, None, None, None, None] + j[None, None, None, None, :]
        words = _masked(tl.max_contiguous(at, (8, 4, 2, 1, 16)), ok5, MASK)
        more = words
    if BITS == 6:
        at = high + base * (KP // 16) + row * (KP // 16)
        at += (u // 2 * 4)[:, None, None, None, None] + j[None, None, None, None, :]
        bits = _masked(tl.max_contiguous(at, (8, 4, 2, 1, 16)), ok5, MASK)
    elif BITS == 5:
        at = high + base * (KP // 32) + row * (KP // 32)
        at += (u // 2 * 2)[:, None, None, None, None] + (j % 2)[None, None, None, None, :]
        at = tl.multiple_of(tl.max_contiguous(at, (8, 4, 2, 1, 16)), (8, 8, 8, 8, 8))  # hence two words at once
        bits = _masked(at, ok5, MASK)
    else:
        bits = words
    WORDS: tl.constexpr = 8 if FORM == GROUP else (2 if FORM == HALF_MINIMUM else 1)
    mine = (base // 4 + group)[None, :, :, None]
    r = tl.arange(0, 4)[None, None, None, :]
    at = scales + mine * (KP // 64 * WORDS * 4) + (u // 2 * (WORDS * 4))[:, None, None, None] + r
    if FORM == GROUP:
        at += (u % 2 * 4)[:, None, None, None]
        s0 = _masked(tl.max_contiguous(at, (4, 2, 1, 8)), ok4, MASK)
        s1 = _masked(tl.max_contiguous(at + 8, (4, 2, 1, 8)), ok4, MASK)
        s2 = _masked(tl.max_contiguous(at + 16, (4, 2, 1, 8)), ok4, MASK)
        s3 = _masked(tl.max_contiguous(at + 24, (4, 2, 1, 8)), ok4, MASK)
    else:
        s0 = _masked(tl.max_contiguous(at, (4, 2, 1, 8)), ok4, MASK)
        s1, s2, s3 = s0, s0, s0
        if FORM == HALF_MINIMUM:
            s1 = _masked(tl.max_contiguous(at + 4, (4, 2, 1, 8)), ok4, MASK)
        if FORM == SUPER or FORM == SUPER_SIGNED:
            at = supers + mine * (KP // 256 * 4) + (u // 8 * 4)[:, None, None, None] + r
            s1 = _masked(tl.max_contiguous(at, (4, 2, 1, 8)), ok4, MASK)
    return words, more, bits, s0, s1, s2, s3


@triton.jit
def low_half(word):
    """The float16 in the lower 16 bits of a word, as float32."""
    return (word & 0xFFFF).to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def high_half(word):
    """The float16 in the upper 16 bits of a word, as float32."""
    return ((word >> 16) & 0xFFFF).to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def unit_scales(s0, s1, s2, s3, u, FORM: tl.constexpr):
    """(scale of the low columns, of the high ones, minimum of the low ones, of the high ones), float32 [U, W, G, 4]."""
    if FORM == HALF:
        return low_half(s0), high_half(s0), 0.0, 0.0
    elif FORM == HALF_MINIMUM:
        return low_half(s0), high_half(s0), low_half(s1), high_half(s1)
    elif FORM == SUPER:
        d, m = low_half(s1), -high_half(s1)
        low, high = (s0 & 0xFF).to(tl.float32), ((s0 >> 16) & 0xFF).to(tl.float32)
        low_m, high_m = ((s0 >> 8) & 0xFF).to(tl.float32), ((s0 >> 24) & 0xFF).to(tl.float32)
        return d * low, d * high, m * low_m, m * high_m
    elif FORM == SUPER_SIGNED:
        d = low_half(s1)
        mine = s0 >> (u % 2 * 8)[:, None, None, None]
        return d * ((mine << 24) >> 24).to(tl.float32), d * ((mine << 8) >> 24).to(tl.float32), 0.0, 0.0
    else:
        return (
            s0.to(tl.float32, bitcast=True),
            s1.to(tl.float32, bitcast=True),
            s2.to(tl.float32, bitcast=True),
            s3.to(tl.float32, bitcast=True),
        )


@triton.jit
def byte_words(words, more, bits, u, BITS: tl.constexpr):
    """The low and the high columns as words of four bytes: quants of 0..63, or signed ones when BITS is 8.

    When BITS is 4 the high ones are 16 times as large: they stay where they are, and their scale makes up for it.
    """
    if BITS == 8:
        return words, more
    elif BITS == 4:
        return words & 0x0F0F0F0F, words & -252645136  # 0xF0F0F0F0
    else:
        low, high = words & 0x0F0F0F0F, (words >> 4) & 0x0F0F0F0F
        if BITS == 6:
            mine = bits >> (u % 2 * 4)[:, None, None, None, None]
            low |= (mine & 0x03030303) << 4
            high |= (mine & 0x0C0C0C0C) << 2
        if BITS == 5:
            j = tl.arange(0, 4)
            mine = bits >> ((u % 2 * 4)[:, None] + (j // 2 * 2)[None, :])[:, None, None, None, :]
            low |= (mine & 0x01010101) << 4
            high |= (mine & 0x02020202) << 3
        return low, high


@triton.jit
def _load_plane(x, plane: tl.constexpr, u, KP: tl.constexpr, W: tl.constexpr, MASK: tl.constexpr):
    at = x + plane * (KP // 8) + (u * 4)[:, None, None] + tl.arange(0, 4)[None, None, :]
    at = tl.max_contiguous(tl.broadcast_to(at, [u.shape[0], W, 4]), (2, 1, 4))
    if MASK:
        return tl.load(at, mask=(u < KP // 32)[:, None, None], other=0.0, eviction_policy="evict_last")
    else:
        return tl.load(at, eviction_policy="evict_last")


@triton.jit
def _fma_bits(acc, word, x, BIT: tl.constexpr, FIELD: tl.constexpr):
    """acc += field of `word` at BIT, times x, in units of 2**-49.

    The masked word *is* the float32 n * 2**(BIT - 149), a subnormal number; multiply-adds take those at full speed
    (Triton compiles without flushing them), so a weight costs one AND and one FMA, without conversion and exactly.
    """
    n = (word & (FIELD << BIT)).to(tl.float32, bitcast=True)
    return acc + n * (x * (2.0 ** (100 - BIT)))[:, :, None, None, :]


@triton.jit
def unit_dot_exact(
    words, more, bits, low_scale, high_scale, low_minimum, high_minimum, x, u, KP: tl.constexpr, U: tl.constexpr,
    W: tl.constexpr, G: tl.constexpr, BITS: tl.constexpr, FORM: tl.constexpr,
):
    """[U, W, G, 4] partial sums of the units with float32 products; x is an activation row in plane order."""
    MASK: tl.constexpr = (KP // 32) % U != 0
    low = tl.zeros([U, W, G, 4, 4], tl.float32)
    high = tl.zeros([U, W, G, 4, 4], tl.float32)
    low_x = tl.zeros([U, W, 4], tl.float32)
    high_x = tl.zeros([U, W, 4], tl.float32)
    if BITS != 4:
        a, b = byte_words(words, more, bits, u, BITS)
        if BITS == 8:
            a, b = a ^ -2139062144, b ^ -2139062144  # 0x80808080: signed bytes become unsigned ones, 128 higher
    for c in tl.static_range(4):
        x0, x1 = _load_plane(x, 2 * c, u, KP, W, MASK), _load_plane(x, 2 * c + 1, u, KP, W, MASK)
        low_x += x0
        high_x += x1
        if BITS == 4:
            if c < 2:
                low = _fma_bits(low, words, x0, 8 * c, 15)
                high = _fma_bits(high, words, x1, 8 * c + 4, 15)
            elif c == 2:
                low = _fma_bits(low, words, x0, 16, 15)
                high = _fma_bits(high, words >> 12, x1, 8, 15)
            else:
                low = _fma_bits(low, words >> 12, x0, 12, 15)
                high = _fma_bits(high, words >> 12, x1, 16, 15)
        elif c < 2:
            low = _fma_bits(low, a, x0, 8 * c, 255)
            high = _fma_bits(high, b, x1, 8 * c, 255)
        else:
            low = _fma_bits(low, a >> 16, x0, 8 * c - 16, 255)
            high = _fma_bits(high, b >> 16, x1, 8 * c - 16, 255)
    ZERO: tl.constexpr = 128.0 if BITS == 8 else zero_point(BITS, FORM)
    low_sum, high_sum = tl.sum(low_x, 2)[:, :, None, None], tl.sum(high_x, 2)[:, :, None, None]
    part = low_scale * (tl.sum(low, 4) * (2.0**49) - ZERO * low_sum)
    part += high_scale * (tl.sum(high, 4) * (2.0**49) - ZERO * high_sum)
    if has_minimum(FORM):
        part += low_minimum * low_sum + high_minimum * high_sum
    return part


@triton.jit
def _dot16(words, x, nothing, U: tl.constexpr, W: tl.constexpr, G: tl.constexpr, SIGNED: tl.constexpr):
    """Sums of the 16 byte products of words [U, W, G, 4, 4] with x [U, W, 4], as one chain."""
    a, b = tl.split(tl.reshape(words, [U, W, G, 4, 2, 2]))
    w0, w2 = tl.split(a)
    w1, w3 = tl.split(b)
    a, b = tl.split(tl.reshape(x, [U, W, 2, 2]))
    x0, x2 = tl.split(a)
    x1, x3 = tl.split(b)
    acc = dot4(w0, nothing + x0[:, :, None, None], nothing, SIGNED)
    acc = dot4(w1, nothing + x1[:, :, None, None], acc, SIGNED)
    acc = dot4(w2, nothing + x2[:, :, None, None], acc, SIGNED)
    return dot4(w3, nothing + x3[:, :, None, None], acc, SIGNED)


@triton.jit
def unit_dot_bytes(
    low, high, low_scale, high_scale, low_minimum, high_minimum, x, x_facts, u, KP: tl.constexpr,
    U: tl.constexpr, W: tl.constexpr, G: tl.constexpr, BITS: tl.constexpr, FORM: tl.constexpr,
):
    """[U, W, G, 4] partial sums with products of bytes; x_facts: see common.byte_facts_place."""
    MASK: tl.constexpr = (KP // 32) % U != 0
    j = tl.arange(0, 4)[None, None, :]
    at = tl.max_contiguous(tl.broadcast_to(x + (u * 4)[:, None, None] + j, [U, W, 4]), (2, 1, 4))
    further = tl.max_contiguous(at + KP // 8, (2, 1, 4))
    facts = tl.max_contiguous(tl.broadcast_to(x_facts + (u * 4)[:, None, None] + j, [U, W, 4]), (2, 1, 4))
    if MASK:
        ok = (u < KP // 32)[:, None, None]
        x0, x1 = tl.load(at, mask=ok, other=0), tl.load(further, mask=ok, other=0)
        four = tl.load(facts, mask=ok, other=0.0)
    else:
        x0, x1 = tl.load(at), tl.load(further)
        four = tl.load(facts)
    low_facts, high_facts = tl.split(tl.reshape(four, [U, W, 2, 2]))
    d0, t0 = tl.split(low_facts)
    d1, t1 = tl.split(high_facts)
    if BITS == 4:
        d1 *= 0.0625
    d0, d1, t0, t1 = d0[:, :, None, None], d1[:, :, None, None], t0[:, :, None, None], t1[:, :, None, None]
    nothing = tl.zeros([U, W, G, 4], tl.int32)
    low_dot = _dot16(low, x0, nothing, U, W, G, BITS == 8).to(tl.float32)
    high_dot = _dot16(high, x1, nothing, U, W, G, BITS == 8).to(tl.float32)
    if has_minimum(FORM):
        part = low_scale * (low_dot * d0) + low_minimum * t0
        part += high_scale * (high_dot * d1) + high_minimum * t1
        return part
    else:
        ZERO: tl.constexpr = zero_point(BITS, FORM)
        part = low_scale * (low_dot * d0 - ZERO * t0)
        return part + high_scale * (high_dot * d1 - ZERO * t1)

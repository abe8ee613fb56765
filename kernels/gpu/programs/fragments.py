"""y = x W^T for up to eight rows on tensor cores, straight from memory: no shared memory before the sums, no shuffles.

A warp holds the matrix unit's own fragments (m16n8k16, weights first): lane 4g + q has 32 columns of the rows g and
g + 8 of a tile of 16, which are one unit of packed weights (`unpack`), and the same columns of row g of x. The order of
columns inside a group of 128 is free as long as both operands agree, so x is stored in the order in which nibbles leave
their words (`fragment_place`), and eight of them become numbers with 13 instructions. Warps lie side by side along K;
their sums meet once, in shared memory.
"""

import triton
import triton.language as tl

from .common import (
    HALF,
    HALF_MINIMUM,
    HAS_PTX,
    activate,
    fragment_place,
    gated,
    start_early,
    store_short,
    wait_for_inputs,
)
from .unpack import has_minimum, high_half, low_half, unit_scales

PLAIN = tl.constexpr(0)  # y float32 [M, STRIDE]
GATED = tl.constexpr(1)  # activation(x A^T) * (x B^T), as a SHORT or FRAGMENTS activation
ACTIVATED = tl.constexpr(2)  # activation(x A^T), likewise


@triton.jit
def multiply(a0, a1, a2, a3, b0, b1, c0, c1, c2, c3, L: tl.constexpr, OLD: tl.constexpr):
    """c + the products of a warp's 16 x 16 weights with 16 x 8 inputs; words of two float16 each, float32 sums."""
    if HAS_PTX:
        if OLD:  # compute capability 7.5 has the half of it
            return tl.inline_asm_elementwise(
                """mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {$0,$1,$2,$3}, {$4,$5}, {$8}, {$10,$11,$12,$13};
                mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {$0,$1,$2,$3}, {$6,$7}, {$9}, {$0,$1,$2,$3};""",
                "=&f,=&f,=&f,=&f,r,r,r,r,r,r,f,f,f,f",
                [a0, a1, a2, a3, b0, b1, c0, c1, c2, c3],
                dtype=(tl.float32, tl.float32, tl.float32, tl.float32),
                is_pure=True,
                pack=1,
            )
        else:
            return tl.inline_asm_elementwise(
                """mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32
                {$0,$1,$2,$3}, {$4,$5,$6,$7}, {$8,$9}, {$10,$11,$12,$13};""",
                "=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f",
                [a0, a1, a2, a3, b0, b1, c0, c1, c2, c3],
                dtype=(tl.float32, tl.float32, tl.float32, tl.float32),
                is_pure=True,
                pack=1,
            )
    else:
        p0, p1 = _eight_rows(a0, a2, b0, b1, L)
        p2, p3 = _eight_rows(a1, a3, b0, b1, L)
        return c0 + p0, c1 + p1, c2 + p2, c3 + p3


@triton.jit
def _eight_rows(a, a_next, b, b_next, L: tl.constexpr):
    """What the unit does for eight rows, for the interpreter: sums of tokens 2q and 2q + 1."""
    WARPS: tl.constexpr = L // 32
    sums = tl.zeros([WARPS, 8, 8, 4], tl.float32)
    sums += tl.reshape(low_half(a), [WARPS, 8, 1, 4]) * tl.reshape(low_half(b), [WARPS, 1, 8, 4])
    sums += tl.reshape(high_half(a), [WARPS, 8, 1, 4]) * tl.reshape(high_half(b), [WARPS, 1, 8, 4])
    sums += tl.reshape(low_half(a_next), [WARPS, 8, 1, 4]) * tl.reshape(low_half(b_next), [WARPS, 1, 8, 4])
    sums += tl.reshape(high_half(a_next), [WARPS, 8, 1, 4]) * tl.reshape(high_half(b_next), [WARPS, 1, 8, 4])
    first, second = tl.split(tl.reshape(tl.sum(sums, 3), [WARPS, 8, 4, 2]))
    return tl.reshape(first, [L]), tl.reshape(second, [L])


@triton.jit
def numbers(word, low, high, low_more, high_more, MINIMUM: tl.constexpr):
    """Eight weights of a word as four words of two float16: low nibbles of bytes 0, 2 and 1, 3, then the high ones.

    `low` and `high` hold the scale of their nibbles twice, `low_more` and `high_more` what is added (with MINIMUM).
    0x6400 | n is the float16 1024 + n, and 0x6400 | 16 n is 1024 + 16 n; without a minimum 8 means zero.
    """
    if HAS_PTX:
        if MINIMUM:
            return tl.inline_asm_elementwise(
                """{ .reg .b32 t, l, h, o, d, e, f;
                mov.b32 l, 0x000f000f; mov.b32 h, 0x00f000f0; mov.b32 o, 0x64006400;
                mov.b32 d, 0xe400e400; mov.b32 e, 0x2c002c00; mov.b32 f, 0xd400d400;
                shr.u32 t, $4, 8;
                lop3.b32 $0, $4, l, o, 0xEA; lop3.b32 $1, t, l, o, 0xEA;
                lop3.b32 $2, $4, h, o, 0xEA; lop3.b32 $3, t, h, o, 0xEA;
                add.rn.f16x2 $0, $0, d; add.rn.f16x2 $1, $1, d;
                fma.rn.f16x2 $2, $2, e, f; fma.rn.f16x2 $3, $3, e, f;
                fma.rn.f16x2 $0, $0, $5, $7; fma.rn.f16x2 $1, $1, $5, $7;
                fma.rn.f16x2 $2, $2, $6, $8; fma.rn.f16x2 $3, $3, $6, $8; }""",
                "=&r,=&r,=&r,=&r,r,r,r,r,r",
                [word, low, high, low_more, high_more],
                dtype=(tl.int32, tl.int32, tl.int32, tl.int32),
                is_pure=True,
                pack=1,
            )
        else:
            return tl.inline_asm_elementwise(
                """{ .reg .b32 t, l, h, o, d, e, f;
                mov.b32 l, 0x000f000f; mov.b32 h, 0x00f000f0; mov.b32 o, 0x64006400;
                mov.b32 d, 0xe408e408; mov.b32 e, 0x2c002c00; mov.b32 f, 0xd480d480;
                shr.u32 t, $4, 8;
                lop3.b32 $0, $4, l, o, 0xEA; lop3.b32 $1, t, l, o, 0xEA;
                lop3.b32 $2, $4, h, o, 0xEA; lop3.b32 $3, t, h, o, 0xEA;
                add.rn.f16x2 $0, $0, d; add.rn.f16x2 $1, $1, d;
                fma.rn.f16x2 $2, $2, e, f; fma.rn.f16x2 $3, $3, e, f;
                mul.rn.f16x2 $0, $0, $5; mul.rn.f16x2 $1, $1, $5;
                mul.rn.f16x2 $2, $2, $6; mul.rn.f16x2 $3, $3, $6; }""",
                "=&r,=&r,=&r,=&r,r,r,r",
                [word, low, high],
                dtype=(tl.int32, tl.int32, tl.int32, tl.int32),
                is_pure=True,
                pack=1,
            )
    else:
        return (
            _two_numbers(word, low, low_more, MINIMUM),
            _two_numbers(word >> 8, low, low_more, MINIMUM),
            _two_numbers(word >> 4, high, high_more, MINIMUM),
            _two_numbers(word >> 12, high, high_more, MINIMUM),
        )


@triton.jit
def _two_numbers(word, scale, more, MINIMUM: tl.constexpr):
    """The nibbles at bits 0 and 16 as two float16, for the interpreter."""
    ZERO: tl.constexpr = 0.0 if MINIMUM else 8.0
    first = ((word & 15).to(tl.float32) - ZERO) * low_half(scale)
    second = (((word >> 16) & 15).to(tl.float32) - ZERO) * low_half(scale)
    if MINIMUM:
        first += low_half(more)
        second += low_half(more)
    return _bits(first) | (_bits(second) << 16)


@triton.jit
def _bits(x):
    """The bits of float16 x, int32 below 65536."""
    return x.to(tl.float16).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF


@triton.jit
def _twice(x):
    """Float32 x as two equal float16 in a word."""
    if HAS_PTX:
        return tl.inline_asm_elementwise(
            "{ .reg .b16 h; cvt.rn.f16.f32 h, $1; mov.b32 $0, {h, h}; }",
            "=r,f",
            [x],
            dtype=tl.int32,
            is_pure=True,
            pack=1,
        )
    else:
        return _bits(x) | (_bits(x) << 16)


@triton.jit
def _both(word):
    """The low and the high half of a word, each twice."""
    if HAS_PTX:
        return tl.inline_asm_elementwise(
            "prmt.b32 $0, $2, $2, 0x1010; prmt.b32 $1, $2, $2, 0x3232;",
            "=&r,=r,r",
            [word],
            dtype=(tl.int32, tl.int32),
            is_pure=True,
            pack=1,
        )
    else:
        low, high = word & 0xFFFF, (word >> 16) & 0xFFFF
        return low | (low << 16), high | (high << 16)


@triton.jit
def _scale_words(s0, s1, u, FORM: tl.constexpr):
    """Scales of a unit's low and high columns and what is added to them, each as two float16 in a word."""
    if FORM == HALF:
        low, high = _both(s0)
        return low, high, low, high
    elif FORM == HALF_MINIMUM:
        return _both(s0) + _both(s1)
    else:
        a0, a1, m0, m1 = unit_scales(s0, s1, s1, s1, u, FORM)
        return _twice(a0), _twice(a1), _twice(m0), _twice(m1)


@triton.jit
def load(at, ok, MASK: tl.constexpr):
    """Words that are read once."""
    if MASK:
        return tl.load(at, mask=ok, other=0, eviction_policy="evict_first")
    else:
        return tl.load(at, eviction_policy="evict_first")


@triton.jit
def four(words):
    """The four slices of [L, 4] as a tuple."""
    even, odd = tl.split(tl.reshape(words, [words.shape[0], 2, 2]))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth


@triton.jit
def request(
    quants, scales, supers, row0, chunk, q, units, KP: tl.constexpr, ROWS: tl.constexpr, FORM: tl.constexpr,
    MASK: tl.constexpr,
):
    """Six words of row0 and six of row0 + 8, at a lane's unit of a chunk of 128 columns; zeros from `units` (MASK)."""
    u = 4 * chunk + q
    ok = u < units
    WORDS: tl.constexpr = 2 if FORM == HALF_MINIMUM else 1
    found = ()
    for h in tl.static_range(2):
        row = tl.minimum(row0 + 8 * h, ROWS - 1).to(tl.int64)
        at = quants + row * (KP // 8) + u * 4
        found = found + four(load(at[:, None] + tl.arange(0, 4)[None, :], ok[:, None], MASK))
        at = scales + row // 4 * (KP // 64 * WORDS * 4) + u // 2 * (WORDS * 4) + row % 4
        s0 = load(at, ok, MASK)
        s1 = s0
        if FORM == HALF_MINIMUM:
            s1 = load(at + 4, ok, MASK)
        elif FORM != HALF:
            s1 = load(supers + row // 4 * (KP // 256 * 4) + u // 8 * 4 + row % 4, ok, MASK)
        found = found + (s0, s1)
    return found


@triton.jit
def _request_both(
    quants, scales, supers, quants_b, scales_b, supers_b, row0, chunk, q, KP: tl.constexpr, ROWS: tl.constexpr,
    FORM: tl.constexpr, TWO: tl.constexpr, MASK: tl.constexpr,
):
    """A chunk of 16 rows, of one matrix or of two."""
    found = request(quants, scales, supers, row0, chunk, q, KP // 32, KP, ROWS, FORM, MASK)
    if TWO:
        found = found + request(quants_b, scales_b, supers_b, row0, chunk, q, KP // 32, KP, ROWS, FORM, MASK)
    return found


@triton.jit
def scale_factors(weights, u, TILES: tl.constexpr, FORM: tl.constexpr):
    """Eight words for each tile of 16 rows: `_scale_words` of rows g and of rows g + 8."""
    found = ()
    for h in tl.static_range(2 * TILES):
        found = found + _scale_words(weights[6 * h + 4], weights[6 * h + 5], u, FORM)
    return found


@triton.jit
def _request_inputs(place, chunk, w: tl.constexpr, CHUNKS: tl.constexpr):
    """Four words of x that meet word w of a chunk's units."""
    at = place + (tl.minimum(chunk, CHUNKS - 1) * 512 + w * 128)
    return four(tl.load(at[:, None] + tl.arange(0, 4)[None, :]))


@triton.jit
def multiply_word(a, b, x, c, L: tl.constexpr, OLD: tl.constexpr):
    """c + a word's products: `a` and `b` are `numbers` of rows g and g + 8."""
    c = multiply(a[0], b[0], a[1], b[1], x[0], x[1], c[0], c[1], c[2], c[3], L, OLD)
    return multiply(a[2], b[2], a[3], b[3], x[2], x[3], c[0], c[1], c[2], c[3], L, OLD)


@triton.jit
def _add_word(
    acc, weights, factors, inputs, w: tl.constexpr, TILES: tl.constexpr, L: tl.constexpr, OLD: tl.constexpr,
    MINIMUM: tl.constexpr,
):
    """4 TILES sums plus the products of word w: four for each tile of 16 rows."""
    result = ()
    for t in tl.static_range(TILES):
        f = factors[8 * t : 8 * t + 8]
        a = numbers(weights[12 * t + w], f[0], f[1], f[2], f[3], MINIMUM)
        b = numbers(weights[12 * t + 6 + w], f[4], f[5], f[6], f[7], MINIMUM)
        result = result + multiply_word(a, b, inputs, acc[4 * t : 4 * t + 4], L, OLD)
    return result


@triton.jit
def _tile(sums, S: tl.constexpr):
    """Products [8, 16] of four sums [32 S], over all warps."""
    parts = tl.join(tl.join(sums[0], sums[2]), tl.join(sums[1], sums[3]))
    total = tl.sum(tl.reshape(parts, [S, 128]), 0)
    tile = tl.permute(tl.reshape(total, [8, 4, 2, 2]), (1, 3, 2, 0))
    return tl.reshape(tile, [8, 16])


@triton.jit(do_not_specialize=["M"])
def few_rows(
    quants, scales, supers, quants_b, scales_b, supers_b, x, y, bias, bias_b, M, factor,
    N: tl.constexpr, KP: tl.constexpr, ROWS: tl.constexpr, S: tl.constexpr, AHEAD: tl.constexpr, FORM: tl.constexpr,
    END: tl.constexpr, HAS_BIAS: tl.constexpr, ACTIVATION: tl.constexpr, STRIDE: tl.constexpr,
    OUT_FRAGMENTS: tl.constexpr, OLD: tl.constexpr, PDL: tl.constexpr,
):
    """M <= 8 rows x (FRAGMENTS, as words) through one matrix of 4-bit quants (two for GATED) of ROWS padded rows.

    `factor` multiplies the sums, then the bias is added. A program makes 16 outputs with S warps side by side along K;
    AHEAD chunks of 128 columns are under way, the first ones before the kernel waits for x, which comes one ahead.
    """
    start_early(PDL)
    i = tl.arange(0, 32 * S)
    q, g, lane_chunk = i % 4, i // 4 % 8, i // 32
    first_row = tl.program_id(0) * 16
    row0 = first_row + g
    CHUNKS: tl.constexpr = (KP + 127) // 128
    STEPS: tl.constexpr = (CHUNKS + S - 1) // S
    MASK: tl.constexpr = KP % 128 != 0 or CHUNKS % (S * AHEAD) != 0
    weights = ()
    for j in tl.static_range(AHEAD):
        weights = weights + _request_both(
            quants, scales, supers, quants_b, scales_b, supers_b, row0, lane_chunk + j * S, q, KP, ROWS, FORM,
            END == GATED, MASK,
        )
    wait_for_inputs(PDL)
    TILES: tl.constexpr = 2 if END == GATED else 1
    MINIMUM: tl.constexpr = has_minimum(FORM)
    lane = tl.minimum(g, M - 1) * 4 + q  # rows that are not there repeat the last one: their results are not stored
    place = x + lane * 4
    queue = ()
    for w in tl.static_range(4):
        queue = queue + _request_inputs(place, lane_chunk, w, CHUNKS)
    acc = ()
    for _ in tl.static_range(4 * TILES):
        acc = acc + (tl.zeros([32 * S], tl.float32),)
    for step in range(0, STEPS - AHEAD, AHEAD):
        refilled = ()
        for j in tl.static_range(AHEAD):
            chunk = lane_chunk + (step + j) * S
            mine = weights[12 * TILES * j : 12 * TILES * (j + 1)]
            factors = scale_factors(mine, 4 * chunk + q, TILES, FORM)
            for w in tl.static_range(4):
                acc = _add_word(acc, mine, factors, queue[:4], w, TILES, 32 * S, OLD, MINIMUM)
                queue = queue[4:] + _request_inputs(place, chunk + S, w, CHUNKS)
            refilled = refilled + _request_both(
                quants, scales, supers, quants_b, scales_b, supers_b, row0, chunk + AHEAD * S, q, KP, ROWS, FORM,
                END == GATED, MASK,
            )
        weights = refilled
    LAST: tl.constexpr = (STEPS - 1) // AHEAD * AHEAD
    for j in tl.static_range(AHEAD):
        if LAST + j < STEPS:
            chunk = lane_chunk + (LAST + j) * S
            mine = weights[12 * TILES * j : 12 * TILES * (j + 1)]
            factors = scale_factors(mine, 4 * chunk + q, TILES, FORM)
            for w in tl.static_range(4):
                acc = _add_word(acc, mine, factors, queue[:4], w, TILES, 32 * S, OLD, MINIMUM)
                if LAST + j + 1 < STEPS:
                    queue = queue[4:] + _request_inputs(place, chunk + S, w, CHUNKS)
                else:
                    queue = queue[4:]
    e = first_row + tl.arange(0, 16)
    ok = e < N
    if HAS_BIAS:
        shift = tl.load(bias + e, mask=ok, other=0.0)[None, :]
        if END == GATED:
            shift_b = tl.load(bias_b + e, mask=ok, other=0.0)[None, :]
    m = tl.arange(0, 8)
    used = (m < M)[:, None] & ok[None, :]
    o = _tile(acc[:4], S) * factor
    if HAS_BIAS:
        o += shift
    if END == PLAIN:
        tl.store(y + m[:, None] * STRIDE + e[None, :], o, mask=used)
    else:
        if END == GATED:
            b = _tile(acc[4:], S) * factor
            if HAS_BIAS:
                b += shift_b
            o = gated(o, b, ACTIVATION)
        else:
            o = activate(o, ACTIVATION)
        if OUT_FRAGMENTS:
            at = y + fragment_place(m[:, None], e[None, :], STRIDE)
        else:
            at = y + m[:, None] * STRIDE + e[None, :]
        store_short(at, o, used)

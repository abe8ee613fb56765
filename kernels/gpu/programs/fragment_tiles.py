"""y = x W^T for nine to 32 rows: the fragments of `fragments`, so that numbers made of weights meet many rows.

A warp takes TILES times 16 rows of a matrix and GROUPS times eight rows of x. Eight weights of a lane become numbers
once and meet all groups; inputs that a lane has loaded meet all tiles. ACROSS warps lie side by side over the rows of
the matrix and read the same inputs, all but the first of them from the first cache. SPLITS programs lie side by side
along K; whoever reads their sums adds them.
"""

import triton
import triton.language as tl

from .common import (
    activate,
    fragment_place,
    fragment_width,
    gated,
    start_early,
    store_short,
    wait_for_inputs,
)
from .fragments import GATED, PLAIN, four, multiply_word, numbers, request, scale_factors
from .unpack import has_minimum


@triton.jit
def _request_tiles(
    quants, scales, supers, quants_b, scales_b, supers_b, row0, chunk, q, units, KP: tl.constexpr, ROWS: tl.constexpr,
    FORM: tl.constexpr, TWO: tl.constexpr, MASK: tl.constexpr, TILES: tl.constexpr,
):
    """Twelve words for each tile of 16 rows, of one matrix and then, with TWO, of the other."""
    found = ()
    for t in tl.static_range(TILES):
        found = found + request(quants, scales, supers, row0 + 16 * t, chunk, q, units, KP, ROWS, FORM, MASK)
    if TWO:
        for t in tl.static_range(TILES):
            found = found + request(quants_b, scales_b, supers_b, row0 + 16 * t, chunk, q, units, KP, ROWS, FORM, MASK)
    return found


@triton.jit
def _request_inputs(place, last_place, chunk, w: tl.constexpr, GROUPS: tl.constexpr, KP: tl.constexpr):
    """Four words of x for each group of eight rows, meeting word w of a chunk; the last group has its place."""
    CHUNKS: tl.constexpr = fragment_width(KP) // 128
    at = tl.minimum(chunk, CHUNKS - 1) * 512 + w * 128
    found = ()
    for j in tl.static_range(GROUPS):
        first = place if j < GROUPS - 1 else last_place
        found = found + four(tl.load((first + at)[:, None] + (j * CHUNKS * 512 + tl.arange(0, 4))[None, :]))
    return found


@triton.jit
def _add_word(
    acc, weights, factors, inputs, w: tl.constexpr, TILES: tl.constexpr, GROUPS: tl.constexpr, L: tl.constexpr,
    OLD: tl.constexpr, MINIMUM: tl.constexpr,
):
    """Sums plus the products of word w: four for each tile of 16 rows and group of eight inputs."""
    result = ()
    for t in tl.static_range(TILES):
        f = factors[8 * t : 8 * t + 8]
        a = numbers(weights[12 * t + w], f[0], f[1], f[2], f[3], MINIMUM)
        b = numbers(weights[12 * t + 6 + w], f[4], f[5], f[6], f[7], MINIMUM)
        for j in tl.static_range(GROUPS):
            c = acc[4 * (t * GROUPS + j) : 4 * (t * GROUPS + j) + 4]
            result = result + multiply_word(a, b, inputs[4 * j : 4 * j + 4], c, L, OLD)
    return result


@triton.jit
def _side_by_side(sums, COUNT: tl.constexpr):
    """COUNT tensors [..], a power of two of them, as one [.., 2, 2, ..]: the first new dimension is the highest bit."""
    if COUNT == 1:
        return sums[0]
    else:
        HALF_COUNT: tl.constexpr = COUNT // 2
        pairs = ()
        for i in tl.static_range(HALF_COUNT):
            pairs = pairs + (tl.join(sums[i], sums[i + HALF_COUNT]),)
        return _side_by_side(pairs, HALF_COUNT)


@triton.jit
def _tile(sums, ACROSS: tl.constexpr, TILES: tl.constexpr, GROUPS: tl.constexpr):
    """Products [8 GROUPS, 16 TILES ACROSS] of sums [32 ACROSS]."""
    parts = tl.reshape(_side_by_side(sums, 4 * TILES * GROUPS), [ACROSS, 8, 4, TILES, GROUPS, 2, 2])
    return tl.reshape(tl.permute(parts, (4, 2, 6, 0, 3, 5, 1)), [8 * GROUPS, 16 * TILES * ACROSS])


@triton.jit(do_not_specialize=["M"])
def more_rows(
    quants, scales, supers, quants_b, scales_b, supers_b, x, y, bias, bias_b, M, factor,
    N: tl.constexpr, KP: tl.constexpr, ROWS: tl.constexpr, TILES: tl.constexpr, GROUPS: tl.constexpr,
    ACROSS: tl.constexpr, SPLITS: tl.constexpr, AHEAD: tl.constexpr, FORM: tl.constexpr, END: tl.constexpr,
    HAS_BIAS: tl.constexpr, ACTIVATION: tl.constexpr, STRIDE: tl.constexpr, OUT_FRAGMENTS: tl.constexpr,
    OLD: tl.constexpr, PDL: tl.constexpr,
):
    """M <= 8 GROUPS rows x (FRAGMENTS, as words) through one matrix of 4-bit quants (two for GATED).

    A matrix has ROWS padded rows, of which N count. `factor` multiplies the sums, then the bias is added; y of PLAIN is
    [SPLITS, M, STRIDE]. A program makes 16 TILES ACROSS outputs. AHEAD chunks of 128 columns of weights are requested
    together, the first ones before the kernel waits for x; results of rows that are not there are not stored.
    """
    start_early(PDL)
    L: tl.constexpr = 32 * ACROSS
    i = tl.arange(0, L)
    q, g = i % 4, i // 4 % 8
    first_row = tl.program_id(0) * (16 * TILES * ACROSS)
    row0 = first_row + i // 32 * (16 * TILES) + g
    CHUNKS: tl.constexpr = fragment_width(KP) // 128
    STEPS: tl.constexpr = (CHUNKS + SPLITS - 1) // SPLITS
    MASK: tl.constexpr = KP % 128 != 0 or CHUNKS % SPLITS != 0 or STEPS % AHEAD != 0
    TWO: tl.constexpr = END == GATED
    ALL_TILES: tl.constexpr = 2 * TILES if TWO else TILES
    split = tl.program_id(1)
    start = split * STEPS
    units = tl.minimum((split + 1) * (STEPS * 4), KP // 32)
    weights = ()
    for j in tl.static_range(AHEAD):
        weights = weights + _request_tiles(
            quants, scales, supers, quants_b, scales_b, supers_b, row0, start + j, q, units, KP, ROWS, FORM, TWO,
            MASK, TILES,
        )
    wait_for_inputs(PDL)
    place = x + (g * 4 + q) * 4
    # Rows of the last group that are not there repeat the last one: their results are not stored.
    there = tl.maximum(M - 1 - 8 * (GROUPS - 1), 0)
    last_place = x + (tl.minimum(g, there) * 4 + q) * 4
    queue = ()
    for w in tl.static_range(4):
        queue = queue + _request_inputs(place, last_place, start, w, GROUPS, KP)
    acc = ()
    for _ in tl.static_range(4 * ALL_TILES * GROUPS):
        acc = acc + (tl.zeros([L], tl.float32),)
    for step in range(0, STEPS, AHEAD):
        refilled = ()
        for j in tl.static_range(AHEAD):
            chunk = start + (step + j)
            mine = weights[12 * ALL_TILES * j : 12 * ALL_TILES * (j + 1)]
            factors = scale_factors(mine, 4 * chunk + q, ALL_TILES, FORM)
            for w in tl.static_range(4):
                inputs = queue[: 4 * GROUPS]
                queue = queue[4 * GROUPS :] + _request_inputs(place, last_place, chunk + 1, w, GROUPS, KP)
                acc = _add_word(acc, mine, factors, inputs, w, ALL_TILES, GROUPS, L, OLD, has_minimum(FORM))
            refilled = refilled + _request_tiles(
                quants, scales, supers, quants_b, scales_b, supers_b, row0, chunk + AHEAD, q, units, KP, ROWS, FORM,
                TWO, True, TILES,
            )
        weights = refilled
    e = first_row + tl.arange(0, 16 * TILES * ACROSS)
    ok = e < N
    m = tl.arange(0, 8 * GROUPS)
    used = (m < M)[:, None] & ok[None, :]
    o = _tile(acc[: 4 * TILES * GROUPS], ACROSS, TILES, GROUPS) * factor
    if HAS_BIAS:
        o += tl.where(split == 0, tl.load(bias + e, mask=ok, other=0.0), 0.0)[None, :]
    if END == PLAIN:
        tl.store(y + split * (M * STRIDE) + m[:, None] * STRIDE + e[None, :], o, mask=used)
    else:
        if END == GATED:
            b = _tile(acc[4 * TILES * GROUPS :], ACROSS, TILES, GROUPS) * factor
            if HAS_BIAS:
                b += tl.load(bias_b + e, mask=ok, other=0.0)[None, :]
            o = gated(o, b, ACTIVATION)
        else:
            o = activate(o, ACTIVATION)
        if OUT_FRAGMENTS:
            at = y + fragment_place(m[:, None], e[None, :], STRIDE)
        else:
            at = y + m[:, None] * STRIDE + e[None, :]
        store_short(at, o, used)

"""One program a row: embeddings and rope tables at the start, sums, norms and residuals between products."""

import triton
import triton.language as tl

from .common import start_early, store_activation, sum_of_parts, wait_for_inputs
from .tiles import tile_weights

NO_NORM = tl.constexpr(0)
RMS = tl.constexpr(1)
LAYER = tl.constexpr(2)


@triton.jit
def _embedding(
    quants, high, scales, supers, row, residual, factor, K: tl.constexpr, KP: tl.constexpr, PB: tl.constexpr,
    BITS: tl.constexpr, FORM: tl.constexpr, ADD: tl.constexpr,
):
    """residual[:K] = factor * row of a packed table (+ what is there, with ADD)."""
    k = tl.arange(0, PB * 32)
    for p0 in range(0, KP // 64, PB):
        low, far = tile_weights(
            quants, high, scales, supers, row + tl.zeros([1], tl.int32), p0, KP, 1, PB, BITS, FORM, tl.float32
        )
        e = (p0 + k // 32) * 64 + k % 32
        low, far = tl.reshape(low, [PB * 32]) * factor, tl.reshape(far, [PB * 32]) * factor
        if ADD:
            low += tl.load(residual + e, mask=e < K, other=0.0)
            far += tl.load(residual + e + 32, mask=e + 32 < K, other=0.0)
            tl.debug_barrier()  # as in finish_rows
        tl.store(residual + e, low, mask=e < K)
        tl.store(residual + e + 32, far, mask=e + 32 < K)


@triton.jit
def embed(
    quants, high, scales, supers, tokens, residual, factor, pos_quants, pos_high, pos_scales, pos_supers, positions,
    position_offset, frequencies, counts, magnitudes, sink_positions, cos_sin, M, K: tl.constexpr, KP: tl.constexpr,
    PB: tl.constexpr, BITS: tl.constexpr, FORM: tl.constexpr, POS_BITS: tl.constexpr, POS_FORM: tl.constexpr,
    HALF: tl.constexpr, TABLES: tl.constexpr,
):
    """Start a step: residual [M, K] from the tokens, and cos | sin of every rope, float32 [tables, M, 2, HALF].

    Grid (M, 1 + tables). Tables TABLES.. are at `sink_positions`. The angle is reduced in float64, where position ten
    million still has nine decimals, so float32 functions of the rest are exact enough.
    """
    m, job = tl.program_id(0), tl.program_id(1)
    if job == 0:
        token = tl.load(tokens + m)
        line = residual + m * K
        _embedding(quants, high, scales, supers, token, line, factor, K, KP, PB, BITS, FORM, False)
        if POS_BITS:
            tl.debug_barrier()
            learned = (tl.load(positions + m) + position_offset).to(tl.int32)
            _embedding(
                pos_quants, pos_high, pos_scales, pos_supers, learned, line, 1.0, K, KP, PB, POS_BITS, POS_FORM, True
            )
    else:
        table = job - 1
        rope = table % TABLES
        place = tl.load(tl.where(table < TABLES, positions, sink_positions) + m).to(tl.float64)
        i = tl.arange(0, HALF)
        ok = i < tl.load(counts + rope)
        angle = place * tl.load(frequencies + rope * HALF + i, mask=ok, other=0.0)
        turn: tl.constexpr = 6.283185307179586
        turns = tl.floor(angle * (1.0 / turn) + 0.5)
        rest = (angle - turns * turn).to(tl.float32)
        magnitude = tl.load(magnitudes + rope)
        at = cos_sin + (table * M + m) * (2 * HALF) + i
        tl.store(at, tl.cos(rest) * magnitude)
        tl.store(at + HALF, tl.sin(rest) * magnitude)


@triton.jit
def _total(x):
    return tl.sum(tl.sum(x, 1), 0)


@triton.jit
def _norm_weights(at, e, ok, HAVE: tl.constexpr):
    """Gains or biases of a norm, requested long before they are needed."""
    if HAVE:
        return tl.load(at + e, mask=ok, other=0.0)
    else:
        return 0.0


@triton.jit
def normalise(
    v, ok, gain, bias, eps, K: tl.constexpr, NORM: tl.constexpr, HAS_GAIN: tl.constexpr, HAS_BIAS: tl.constexpr
):
    """RMS or layer norm of a whole row v [A, 16] whose elements beyond K are masked by `ok`; gain and bias likewise."""
    if NORM == LAYER:
        v = tl.where(ok, v - _total(v) / K, 0.0)
    if NORM:
        v = v * (1.0 / tl.sqrt(_total(v * v) / K + eps))
    if HAS_GAIN:
        v = v * gain
    if HAS_BIAS:
        v = v + bias
    return v


@triton.jit
def finish_rows(
    parts, shares, extra, extra_gate, post_gain, post_bias, post_eps, residual, factor, gain, norm_bias, eps, rows,
    planes, o_quants, o_facts, natural, short, K: tl.constexpr, KP: tl.constexpr, A: tl.constexpr,
    STEP: tl.constexpr, PARTS: tl.constexpr, PART_STEP: tl.constexpr, ROW_STEP: tl.constexpr,
    HAS_SHARES: tl.constexpr, HAS_EXTRA: tl.constexpr, HAS_EXTRA_GATE: tl.constexpr, POST: tl.constexpr,
    POST_GAIN: tl.constexpr, POST_BIAS: tl.constexpr, NORM: tl.constexpr, HAS_GAIN: tl.constexpr,
    NORM_BIAS: tl.constexpr, GATHER: tl.constexpr, FORMATS: tl.constexpr, PDL: tl.constexpr,
):
    """What stands between two products, for one row of K values; rows of the residual are STEP apart.

    v = the sum of PARTS partial results (of experts: weighted by `shares`) + extra (times sigmoid(extra_gate));
    v = post norm of v; residual += factor * v; then the norm of the residual is stored as an activation row. With
    GATHER the residual of row `rows[m]` is read and not changed.
    """
    start_early(PDL)
    m = tl.program_id(0)
    e = 16 * tl.arange(0, A)[:, None] + tl.arange(0, 16)[None, :]
    ok = e < K
    gains, biases = _norm_weights(gain, e, ok, HAS_GAIN), _norm_weights(norm_bias, e, ok, NORM_BIAS)
    wait_for_inputs(PDL)
    if GATHER:
        v = tl.load(residual + tl.load(rows + m) * STEP + e, mask=ok, other=0.0)
    else:
        v = tl.load(residual + m * STEP + e, mask=ok, other=0.0)
    if PARTS:
        new = sum_of_parts(
            parts, shares, extra, extra_gate, m, e, ok, tl.zeros([A, 16], tl.float32), K, PART_STEP,
            ROW_STEP, PARTS, HAS_SHARES, HAS_EXTRA, HAS_EXTRA_GATE,
        )
        post_gains = _norm_weights(post_gain, e, ok, POST_GAIN)
        post_biases = _norm_weights(post_bias, e, ok, POST_BIAS)
        new = normalise(new, ok, post_gains, post_biases, post_eps, K, POST, POST_GAIN, POST_BIAS)
        v = v + factor * new
        tl.debug_barrier()  # threads may hold copies of an element: all must have read it before one writes
        tl.store(residual + m * STEP + e, v, mask=ok)
    v = normalise(v, ok, gains, biases, eps, K, NORM, HAS_GAIN, NORM_BIAS)
    start = 16 * tl.arange(0, A)
    row = m + tl.zeros([A], tl.int32)
    store_activation(planes, o_quants, o_facts, natural, short, row, start, v, start < KP, KP, FORMATS)

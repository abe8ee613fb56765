"""What happens to queries, keys and values before attention: their norms, rope, and the write to a page."""

import triton
import triton.language as tl

from .common import start_early, wait_for_inputs

PAGE = tl.constexpr(16)

NO_NORM = tl.constexpr(0)
RMS = tl.constexpr(1)
LAYER = tl.constexpr(2)

# What a norm of queries or keys is over, and how many gains it has.
EACH_HEAD = tl.constexpr(0)  # over each head, one gain for all heads
ALL_HEADS = tl.constexpr(1)  # over all heads together
OWN_GAIN = tl.constexpr(2)  # over each head, every head with a gain of its own


@triton.jit
def _partner(d, HALF: tl.constexpr, INTERLEAVED: tl.constexpr):
    """The other element of d's rotated pair (d itself beyond them), and whether d is the first of it."""
    if INTERLEAVED:
        other, first, pair = d ^ 1, d % 2 == 0, d // 2
    else:
        other, first, pair = tl.where(d < HALF, d + HALF, d - HALF), d < HALF, d % HALF if HALF else d
    turned = d < 2 * HALF
    return tl.where(turned, other, d), first, tl.where(turned, pair, 0), turned


@triton.jit
def load_parts(at, ok, step, PARTS: tl.constexpr):
    """The sum of PARTS partial products, `step` apart."""
    v = tl.load(at, mask=ok, other=0.0)
    for p in tl.static_range(1, PARTS):
        v += tl.load(at + p * step, mask=ok, other=0.0)
    return v


@triton.jit
def head_vectors(
    x, step, heads, d, ok, gain, bias, eps, cos_sin, D: tl.constexpr, HEADS: tl.constexpr, HALF: tl.constexpr,
    TABLE_HALF: tl.constexpr, INTERLEAVED: tl.constexpr, NORM: tl.constexpr, SPAN: tl.constexpr, AFTER: tl.constexpr,
    HAS_GAIN: tl.constexpr, HAS_BIAS: tl.constexpr, ALL: tl.constexpr, PARTS: tl.constexpr,
):
    """Normalised and rotated vectors [heads, d] of one row x [HEADS * D]; `cos_sin` is the row's rope table."""
    at = x + heads[:, None] * D + d[None, :]
    v = load_parts(at, ok, step, PARTS)
    other, first, pair, turned = _partner(d, HALF, INTERLEAVED)
    if HALF:
        w = load_parts(x + heads[:, None] * D + other[None, :], ok, step, PARTS)
    else:
        w = v
    if NORM and not AFTER:
        if SPAN == ALL_HEADS:
            i = tl.arange(0, ALL)
            whole = load_parts(x + i, i < HEADS * D, step, PARTS)
            mean = tl.sum(whole, 0) / (HEADS * D) if NORM == LAYER else 0.0
            whole = tl.where(i < HEADS * D, whole - mean, 0.0)
            inverse = 1.0 / tl.sqrt(tl.sum(whole * whole, 0) / (HEADS * D) + eps)
            v, w = (v - mean) * inverse, (w - mean) * inverse
        else:
            mean = tl.sum(v, 1)[:, None] / D if NORM == LAYER else 0.0
            centred = tl.where(ok, v - mean, 0.0)
            inverse = 1.0 / tl.sqrt(tl.sum(centred * centred, 1) / D + eps)[:, None]
            v, w = centred * inverse, (w - mean) * inverse
        if HAS_GAIN:
            row = heads[:, None] * D if SPAN != EACH_HEAD else heads[:, None] * 0
            v = v * tl.load(gain + row + d[None, :], mask=ok, other=0.0)
            w = w * tl.load(gain + row + other[None, :], mask=ok, other=0.0)
            if HAS_BIAS:
                v = v + tl.load(bias + row + d[None, :], mask=ok, other=0.0)
                w = w + tl.load(bias + row + other[None, :], mask=ok, other=0.0)
    if HALF:
        c = tl.where(turned, tl.load(cos_sin + pair), 1.0)
        s = tl.where(turned, tl.load(cos_sin + TABLE_HALF + pair), 0.0)
        s = tl.where(first, -s, s)
        v = v * c[None, :] + w * s[None, :]
    if NORM and AFTER:
        mean = tl.sum(v, 1)[:, None] / D if NORM == LAYER else 0.0
        centred = tl.where(ok, v - mean, 0.0)
        v = centred * (1.0 / tl.sqrt(tl.sum(centred * centred, 1) / D + eps)[:, None])
        if HAS_GAIN:
            row = heads[:, None] * D if SPAN != EACH_HEAD else heads[:, None] * 0
            v = v * tl.load(gain + row + d[None, :], mask=ok, other=0.0)
            if HAS_BIAS:
                v = v + tl.load(bias + row + d[None, :], mask=ok, other=0.0)
    return v


@triton.jit
def prepare(
    qkv, q, q_sink, k_pool, v_pool, slots, cos_sin, M, q_gain, q_bias, q_eps, k_gain, k_bias, k_eps,
    STRIDE: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    BK: tl.constexpr, BV: tl.constexpr, BQH: tl.constexpr, BKH: tl.constexpr, HALF: tl.constexpr,
    TABLE_HALF: tl.constexpr, INTERLEAVED: tl.constexpr, SINK_TABLE: tl.constexpr, TABLE: tl.constexpr,
    NORM: tl.constexpr, Q_SPAN: tl.constexpr, K_SPAN: tl.constexpr, K_NORM: tl.constexpr, AFTER: tl.constexpr,
    Q_GAIN: tl.constexpr, Q_BIAS: tl.constexpr, K_GAIN: tl.constexpr, K_BIAS: tl.constexpr, Q_ALL: tl.constexpr,
    K_ALL: tl.constexpr, PARTS: tl.constexpr, PDL: tl.constexpr,
):
    """Rotate the queries of row m into q (and, for evicted sequences, q_sink) and write its key and value to a page.

    Grid (M, 3): queries, keys, values. Pools are [pages, kv heads, 16, dimension]; a slot of -1 is not written.
    """
    start_early(PDL)
    wait_for_inputs(PDL)
    m, job = tl.program_id(0), tl.program_id(1)
    x = qkv + m * STRIDE
    table = cos_sin + (TABLE * M + m) * (2 * TABLE_HALF)
    if job == 0:
        heads, d = tl.arange(0, BQH), tl.arange(0, BK)
        ok = (heads < HEADS)[:, None] & (d < DK)[None, :]
        v = head_vectors(
            x, M * STRIDE, heads, d, ok, q_gain, q_bias, q_eps, table, DK, HEADS, HALF, TABLE_HALF, INTERLEAVED, NORM,
            Q_SPAN, AFTER, Q_GAIN, Q_BIAS, Q_ALL, PARTS,
        )
        at = (m * HEADS + heads)[:, None] * DK + d[None, :]
        tl.store(q + at, v, mask=ok)
        if SINK_TABLE >= 0:
            table = cos_sin + (SINK_TABLE * M + m) * (2 * TABLE_HALF)
            v = head_vectors(
                x, M * STRIDE, heads, d, ok, q_gain, q_bias, q_eps, table, DK, HEADS, HALF, TABLE_HALF, INTERLEAVED,
                NORM, Q_SPAN, AFTER, Q_GAIN, Q_BIAS, Q_ALL, PARTS,
            )
            tl.store(q_sink + at, v, mask=ok)
        return
    slot = tl.load(slots + m)
    if slot < 0:
        return
    page, offset = slot // PAGE, slot % PAGE
    heads = tl.arange(0, BKH)
    if job == 1:
        d = tl.arange(0, BK)
        ok = (heads < KV_HEADS)[:, None] & (d < DK)[None, :]
        v = head_vectors(
            x + HEADS * DK, M * STRIDE, heads, d, ok, k_gain, k_bias, k_eps, table, DK, KV_HEADS, HALF, TABLE_HALF,
            INTERLEAVED, K_NORM, K_SPAN, AFTER, K_GAIN, K_BIAS, K_ALL, PARTS,
        )
        at = k_pool + ((page * KV_HEADS + heads) * PAGE + offset)[:, None] * DK + d[None, :]
        tl.store(at, v.to(k_pool.dtype.element_ty), mask=ok)
    else:
        d = tl.arange(0, BV)
        ok = (heads < KV_HEADS)[:, None] & (d < DV)[None, :]
        v = load_parts(x + (HEADS + KV_HEADS) * DK + heads[:, None] * DV + d[None, :], ok, M * STRIDE, PARTS)
        at = v_pool + ((page * KV_HEADS + heads) * PAGE + offset)[:, None] * DV + d[None, :]
        tl.store(at, v.to(v_pool.dtype.element_ty), mask=ok)

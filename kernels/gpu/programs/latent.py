"""Multi-head latent attention: products with a small matrix per head, and the compressed key that is cached."""

import triton
import triton.language as tl

from .common import start_early, wait_for_inputs


@triton.jit
def head_products(
    x, weights, y, M, ROW: tl.constexpr, HEAD: tl.constexpr, K: tl.constexpr, N: tl.constexpr, OUT_ROW: tl.constexpr,
    OUT_HEAD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PDL: tl.constexpr,
):
    """y[m, h, :N] = weights[h] @ x[m, h, :K] for every head; grid (heads, row tiles, output tiles).

    Rows are ROW and OUT_ROW values apart, heads HEAD and OUT_HEAD; weights [heads, N, K] in float32 or float16.
    """
    start_early(PDL)
    wait_for_inputs(PDL)
    h = tl.program_id(0)
    m = tl.program_id(1) * BM + tl.arange(0, BM)
    n = tl.program_id(2) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    acc = tl.zeros([BM, BN], tl.float32)
    for k0 in range(0, K, BK):
        ok = k0 + k < K
        a = tl.load(x + m[:, None] * ROW + h * HEAD + k0 + k[None, :], mask=(m < M)[:, None] & ok[None, :], other=0.0)
        at = weights + (h * N + n)[:, None] * K + k0 + k[None, :]
        b = tl.load(at, mask=(n < N)[:, None] & ok[None, :], other=0.0)
        if b.dtype == tl.float32:
            acc = tl.dot(a, tl.trans(b), acc, input_precision="ieee")
        else:
            acc = tl.dot(a.to(b.dtype), tl.trans(b), acc)
    at = y + m[:, None] * OUT_ROW + h * OUT_HEAD + n[None, :]
    tl.store(at, acc, mask=(m < M)[:, None] & (n < N)[None, :])


@triton.jit
def _turn(x, i, cos_sin, HALF: tl.constexpr, TABLE_HALF: tl.constexpr, INTERLEAVED: tl.constexpr):
    """The two halves of rotated pairs i of the vector at x, and where they go."""
    a_at = 2 * i if INTERLEAVED else i
    b_at = 2 * i + 1 if INTERLEAVED else i + HALF
    ok = i < HALF
    a, b = tl.load(x + a_at, mask=ok, other=0.0), tl.load(x + b_at, mask=ok, other=0.0)
    c, s = tl.load(cos_sin + i, mask=ok, other=0.0), tl.load(cos_sin + TABLE_HALF + i, mask=ok, other=0.0)
    return a * c - b * s, a * s + b * c, a_at, b_at, ok


@triton.jit
def prepare_latent(
    down, stride, query, q_stride, q, q_sink, gain, norm_bias, eps, pool, slots, cos_sin, M, HEADS: tl.constexpr,
    RANK: tl.constexpr, NOPE: tl.constexpr, BR: tl.constexpr, HALF: tl.constexpr, BH: tl.constexpr,
    TABLE_HALF: tl.constexpr, INTERLEAVED: tl.constexpr, TABLE: tl.constexpr, SINK_TABLE: tl.constexpr,
    HAS_GAIN: tl.constexpr, HAS_BIAS: tl.constexpr, SUBTRACT_MEAN: tl.constexpr, PDL: tl.constexpr,
):
    """Grid (M, HEADS + 1): the rotated part of each head's query behind its latent part in q; last: the cached vector.

    `down` row m holds RANK values, then the key's rotated part; `query` rows hold NOPE + 2 HALF values a head; rows of
    q are HEADS vectors of RANK + 2 HALF values.
    """
    start_early(PDL)
    wait_for_inputs(PDL)
    m, job = tl.program_id(0), tl.program_id(1)
    i = tl.arange(0, BH)
    table = cos_sin + (TABLE * M + m) * (2 * TABLE_HALF)
    WIDTH: tl.constexpr = RANK + 2 * HALF
    if job < HEADS:
        x = query + m * q_stride + job * (NOPE + 2 * HALF) + NOPE
        a, b, a_at, b_at, ok = _turn(x, i, table, HALF, TABLE_HALF, INTERLEAVED)
        at = q + (m * HEADS + job) * WIDTH + RANK
        tl.store(at + a_at, a, mask=ok)
        tl.store(at + b_at, b, mask=ok)
        if SINK_TABLE >= 0:
            table = cos_sin + (SINK_TABLE * M + m) * (2 * TABLE_HALF)
            a, b, a_at, b_at, ok = _turn(x, i, table, HALF, TABLE_HALF, INTERLEAVED)
            at = q_sink + (m * HEADS + job) * WIDTH + RANK
            tl.store(at + a_at, a, mask=ok)
            tl.store(at + b_at, b, mask=ok)
        return
    slot = tl.load(slots + m)
    if slot < 0:
        return
    TYPE: tl.constexpr = pool.dtype.element_ty
    at = pool + slot * WIDTH
    r = tl.arange(0, BR)
    ok = r < RANK
    v = tl.load(down + m * stride + r, mask=ok, other=0.0)
    if SUBTRACT_MEAN:
        v = tl.where(ok, v - tl.sum(v, 0) / RANK, 0.0)
    v = v * (1.0 / tl.sqrt(tl.sum(v * v, 0) / RANK + eps))
    if HAS_GAIN:
        v = v * tl.load(gain + r, mask=ok, other=0.0)
    if HAS_BIAS:
        v = v + tl.load(norm_bias + r, mask=ok, other=0.0)
    tl.store(at + r, v.to(TYPE), mask=ok)
    a, b, a_at, b_at, ok = _turn(down + m * stride + RANK, i, table, HALF, TABLE_HALF, INTERLEAVED)
    tl.store(at + RANK + a_at, a.to(TYPE), mask=ok)
    tl.store(at + RANK + b_at, b.to(TYPE), mask=ok)

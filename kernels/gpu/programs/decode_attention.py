"""Attention of one new row a sequence over a short context: one query head a program, all keys of a step in registers.

Keys and values come from pages and are requested before the program waits for the first product of the layer, whose
raw queries, keys and values it then normalises, rotates and (one program a key head) writes to a page on the side.
Products are float32 throughout. Query heads that share a key head read it again: from the cache, which is quicker than
anything that would let them share.
"""

import triton
import triton.language as tl

from .attention import FAR, LOG2E
from .common import start_early, store_activation, tanh, wait_for_inputs
from .heads import PAGE, head_vectors, load_parts


@triton.jit
def _load_keys(
    k_pool, v_pool, table, kv_head, c0, end, start, sinks, KV_HEADS: tl.constexpr, DK: tl.constexpr,
    DV: tl.constexpr, B: tl.constexpr, T: tl.constexpr,
):
    """Keys c0..c0+T of the visible ones: (place, index, ok, keys [T, B], values [T, B])."""
    place = c0 + tl.arange(0, T)
    ok = place < end
    index = tl.where(place < sinks, place, place - sinks + start)
    page = tl.load(table + index // PAGE, mask=ok, other=0).to(tl.int64)
    at = ((page * KV_HEADS + kv_head) * PAGE + index % PAGE)[:, None]
    d = tl.arange(0, B)[None, :]
    k = tl.load(k_pool + at * DK + d, mask=ok[:, None] & (d < DK), other=0.0)
    v = tl.load(v_pool + at * DV + d, mask=ok[:, None] & (d < DV), other=0.0)
    return place, index, ok, k, v


@triton.jit
def _cap(s, SOFTCAP: tl.constexpr):
    """A score after the soft cap, in units of log 2."""
    if SOFTCAP > 0.0:
        s = SOFTCAP * tanh(s / SOFTCAP)
    return s * LOG2E


@triton.jit
def _vector(
    x, step, head, d, gain, bias, eps, turn, D: tl.constexpr, HEADS: tl.constexpr, HALF: tl.constexpr,
    TABLE_HALF: tl.constexpr, INTERLEAVED: tl.constexpr, NORM: tl.constexpr, SPAN: tl.constexpr,
    AFTER: tl.constexpr, GAIN: tl.constexpr, BIAS: tl.constexpr, ALL: tl.constexpr, PARTS: tl.constexpr,
):
    """One head's vector [B]."""
    v = head_vectors(
        x, step, head + tl.arange(0, 1), d, (d < D)[None, :], gain, bias, eps, turn, D, HEADS, HALF, TABLE_HALF,
        INTERLEAVED, NORM, SPAN, AFTER, GAIN, BIAS, ALL, PARTS,
    )
    return tl.reshape(v, [d.shape[0]])


@triton.jit
def attend_one(
    qkv, k_pool, v_pool, slots, cos_sin, M, q_gain, q_bias, q_eps, k_gain, k_bias, k_eps, tables, sink_tokens,
    window_starts, row_index, positions, sink_logits, scale, partial, partial_sums, counters,
    planes, o_quants, o_facts, natural, short,
    STRIDE: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    B: tl.constexpr, T: tl.constexpr, TABLE_STRIDE: tl.constexpr, SPLITS: tl.constexpr, WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr, SINKS: tl.constexpr, HAS_SINK_LOGITS: tl.constexpr, HALF: tl.constexpr,
    TABLE_HALF: tl.constexpr, INTERLEAVED: tl.constexpr, SINK_TABLE: tl.constexpr, TABLE: tl.constexpr,
    NORM: tl.constexpr, Q_SPAN: tl.constexpr, K_SPAN: tl.constexpr, K_NORM: tl.constexpr, AFTER: tl.constexpr,
    Q_GAIN: tl.constexpr, Q_BIAS: tl.constexpr, K_GAIN: tl.constexpr, K_BIAS: tl.constexpr, Q_ALL: tl.constexpr,
    K_ALL: tl.constexpr, KP: tl.constexpr, FORMATS: tl.constexpr, PARTS: tl.constexpr, PDL: tl.constexpr,
):
    """Grid (M, query heads, splits); row m is sequence m's only one. The rest is as `attention.attend` says."""
    start_early(PDL)
    row, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    kv_head = head // (HEADS // KV_HEADS)
    slot = tl.load(slots + row)
    if slot < 0:
        return
    own, place = tl.load(row_index + row), tl.load(positions + row)
    sinks = tl.load(sink_tokens + row) if SINKS else 0
    start = sinks
    if WINDOW:  # the lowest index behind the sinks that the window lets through
        lowest = (place - WINDOW + 1 - tl.load(window_starts + row) + sinks).to(tl.int32)
        start = tl.minimum(tl.maximum(start, lowest), tl.maximum(own, sinks))
    total = sinks + tl.maximum(own - start, 0)
    chunk = tl.cdiv(tl.cdiv(total, SPLITS), T) * T
    begin = split * chunk
    end = tl.minimum(begin + chunk, total)
    table = tables + row * TABLE_STRIDE
    at_place, index, ok, k, v = _load_keys(
        k_pool, v_pool, table, kv_head, begin, end, start, sinks, KV_HEADS, DK, DV, B, T
    )
    turn = cos_sin + (TABLE * M + row) * (2 * TABLE_HALF)
    wait_for_inputs(PDL)
    d = tl.arange(0, B)
    x = qkv + row * STRIDE
    step = M * STRIDE
    query = _vector(
        x, step, head, d, q_gain, q_bias, q_eps, turn, DK, HEADS, HALF, TABLE_HALF, INTERLEAVED, NORM, Q_SPAN, AFTER,
        Q_GAIN, Q_BIAS, Q_ALL, PARTS,
    ) * scale
    far_query = query
    if SINKS:
        far = cos_sin + (SINK_TABLE * M + row) * (2 * TABLE_HALF)
        far_query = _vector(
            x, step, head, d, q_gain, q_bias, q_eps, far, DK, HEADS, HALF, TABLE_HALF, INTERLEAVED, NORM, Q_SPAN,
            AFTER, Q_GAIN, Q_BIAS, Q_ALL, PARTS,
        ) * scale
    key = _vector(
        x + HEADS * DK, step, kv_head, d, k_gain, k_bias, k_eps, turn, DK, KV_HEADS, HALF, TABLE_HALF, INTERLEAVED,
        K_NORM, K_SPAN, AFTER, K_GAIN, K_BIAS, K_ALL, PARTS,
    ).to(k_pool.dtype.element_ty)
    value = load_parts(x + (HEADS + KV_HEADS) * DK + kv_head * DV + d, d < DV, step, PARTS).to(v_pool.dtype.element_ty)
    first = split == 0
    largest = tl.where(first, _cap(tl.sum(query * key.to(tl.float32), 0), SOFTCAP), FAR)
    share_sum = tl.where(first, 1.0, 0.0)
    acc = tl.where(first, 1.0, 0.0) * value.to(tl.float32)
    if HAS_SINK_LOGITS:  # a score without a value
        logit = tl.where(first, tl.load(sink_logits + head) * LOG2E, FAR)
        new = tl.maximum(largest, logit)
        acc = acc * tl.exp2(largest - new)
        share_sum = share_sum * tl.exp2(largest - new) + tl.where(first, tl.exp2(logit - new), 0.0)
        largest = new
    for c0 in range(begin, end, T):
        if c0 > begin:
            at_place, index, ok, k, v = _load_keys(
                k_pool, v_pool, table, kv_head, c0, end, start, sinks, KV_HEADS, DK, DV, B, T
            )
        k32 = k.to(tl.float32)
        s = tl.sum(k32 * query[None, :], 1)
        if SINKS:
            if c0 < sinks:
                s = tl.where(at_place < sinks, tl.sum(k32 * far_query[None, :], 1), s)
        seen = ok
        if WINDOW:
            seen = seen & tl.where(at_place < sinks, index > place - WINDOW, index >= lowest)
        s = tl.where(seen, _cap(s, SOFTCAP), FAR)
        new = tl.maximum(largest, tl.max(s, 0))
        share = tl.where(seen, tl.exp2(s - new), 0.0)
        old_share = tl.exp2(largest - new)
        acc = acc * old_share + tl.sum(share[:, None] * v.to(tl.float32), 0)
        share_sum = share_sum * old_share + tl.sum(share, 0)
        largest = new
    if (head % (HEADS // KV_HEADS) == 0) & first:
        at = (slot // PAGE * KV_HEADS + kv_head) * PAGE + slot % PAGE
        tl.store(k_pool + at * DK + d, key, mask=d < DK)
        tl.store(v_pool + at * DV + d, value, mask=d < DV)
    if SPLITS > 1:
        job = row * HEADS + head
        tl.store(partial + (job * SPLITS + split) * B + d, acc)
        tl.store(partial_sums + (job * SPLITS + split) * 2, largest)
        tl.store(partial_sums + (job * SPLITS + split) * 2 + 1, share_sum)
        tl.debug_barrier()
        if tl.atomic_add(counters + job, 1, sem="acq_rel") < SPLITS - 1:
            return
        tl.store(counters + job, 0)
        part = job * SPLITS + tl.arange(0, SPLITS)
        most = tl.load(partial_sums + part * 2, cache_modifier=".cg")
        factor = tl.exp2(most - tl.max(most, 0))
        share_sum = tl.sum(tl.load(partial_sums + part * 2 + 1, cache_modifier=".cg") * factor, 0)
        values = tl.load(partial + part[:, None] * B + d[None, :], cache_modifier=".cg")
        acc = tl.sum(values * factor[:, None], 0)
    acc = acc / tl.where(share_sum > 0, share_sum, 1.0)
    WIDTH: tl.constexpr = 16 if DV % 16 == 0 else (8 if DV % 8 == 0 else 1)
    A: tl.constexpr = B // WIDTH
    column = tl.arange(0, A) * WIDTH
    store_activation(
        planes, o_quants, o_facts, natural, short, row + tl.zeros([A], tl.int32), head * DV + column,
        tl.reshape(acc, [A, WIDTH]), column < DV, KP, FORMATS,
    )

"""Attention over paged keys and values on tensor cores: prefill, trees of guesses, many heads on one key head.

A program takes up to BM (row, query head) pairs that share one key/value head: the rows of a tile times the heads of a
group. Softmax runs online over tiles of BN keys (https://arxiv.org/abs/2307.08691); for few rows the keys are also
split over programs, and the last of them to finish merges the parts, always in the same order.
"""

import triton
import triton.language as tl

from .common import start_early, store_activation, tanh, wait_for_inputs
from .heads import PAGE

LOG2E = tl.constexpr(1.4426950408889634)
FAR = tl.constexpr(-1.0e30)  # a score that no key has


@triton.jit
def _load_tile(
    k_pool, v_pool, table, kv_head, c0, end, start, sinks, KV_HEADS: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    BK: tl.constexpr, D2: tl.constexpr, B2: tl.constexpr, BV: tl.constexpr, BN: tl.constexpr,
):
    """Keys c0..c0+BN of the sequence's visible ones: (index, ok, keys [BN, BK], their second part, values [BN, BV])."""
    c = c0 + tl.arange(0, BN)
    ok = c < end
    index = tl.where(c < sinks, c, c - sinks + start)
    page = tl.load(table + index // PAGE, mask=ok, other=0)
    at = ((page.to(tl.int64) * KV_HEADS + kv_head) * PAGE + index % PAGE)[:, None]
    d = tl.arange(0, BK)
    D1: tl.constexpr = DK - D2
    k = tl.load(k_pool + at * DK + d[None, :], mask=ok[:, None] & (d < D1)[None, :], other=0.0)
    if D2:
        d = tl.arange(0, B2)
        k2 = tl.load(k_pool + at * DK + D1 + d[None, :], mask=ok[:, None] & (d < D2)[None, :], other=0.0)
        v = k  # latent attention: the first part of a key is its value
    else:
        k2 = k
        d = tl.arange(0, BV)
        v = tl.load(v_pool + at * DV + d[None, :], mask=ok[:, None] & (d < DV)[None, :], other=0.0)
    return index, c, ok, k, k2, v


@triton.jit
def _dot(a, b, acc, EXACT: tl.constexpr):
    """acc + a b for float32 a and stored b; EXACT splits a into two halves, so that no digit of it is lost."""
    if b.dtype == tl.float32:
        return tl.dot(a, b, acc, input_precision="ieee")
    else:
        first = a.to(b.dtype)
        acc = tl.dot(first, b, acc)
        if EXACT:
            acc = tl.dot((a - first.to(tl.float32)).to(b.dtype), b, acc)
        return acc


@triton.jit
def _scores(q, q2, k, k2, scale, BM: tl.constexpr, BN: tl.constexpr, D2: tl.constexpr, EXACT: tl.constexpr):
    s = _dot(q, tl.trans(k), tl.zeros([BM, BN], tl.float32), EXACT)
    if D2:
        s = _dot(q2, tl.trans(k2), s, EXACT)
    return s * scale


@triton.jit
def _cap(s, SOFTCAP: tl.constexpr):
    """Scores after the soft cap, in units of log 2."""
    if SOFTCAP > 0.0:
        s = SOFTCAP * tanh(s / SOFTCAP)
    return s * LOG2E


@triton.jit
def _load_query(q, row, head, d, ok, HEADS: tl.constexpr, DK: tl.constexpr):
    return tl.load(q + ((row * HEADS + head) * DK)[:, None] + d[None, :], mask=ok, other=0.0)


@triton.jit
def _update(
    acc, largest, total_share, query, query2, sink_query, sink_query2, k, k2, v, index, c, ok, c0, sinks, shift, row,
    own, place, valid, tree_row, row_index, positions, ancestors, M, scale, BM: tl.constexpr, BN: tl.constexpr,
    D2: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, SINKS: tl.constexpr, TREE: tl.constexpr,
    EXACT: tl.constexpr,
):
    """One step of the online softmax: the running (values, largest score, sum of shares) after a tile of keys."""
    s = _scores(query, query2, k, k2, scale, BM, BN, D2, EXACT)
    if SINKS:
        if c0 < sinks:
            s = tl.where((c < sinks)[None, :], _scores(sink_query, sink_query2, k, k2, scale, BM, BN, D2, EXACT), s)
    s = _cap(s, SOFTCAP)
    seen = ok[None, :] & valid[:, None]
    key_place = tl.where(index < sinks, index, index + shift)
    if TREE:
        base = tl.load(row_index + tree_row)
        key_row = tree_row + tl.maximum(index - base, 0)
        at = ancestors + row[:, None] * M + key_row[None, :]
        mine = tl.load(at, mask=seen & (index >= base)[None, :], other=0)
        seen = seen & ((index < base)[None, :] | (mine != 0))
        if WINDOW:
            key_place = tl.where(index < base, key_place, tl.load(positions + key_row, mask=ok, other=0))
    else:
        seen = seen & (index[None, :] <= own[:, None])
    if WINDOW:
        seen = seen & (key_place[None, :] > (place - WINDOW)[:, None])
    s = tl.where(seen, s, FAR)
    new = tl.maximum(largest, tl.max(s, 1))
    old_share = tl.exp2(largest - new)
    share = tl.where(seen, tl.exp2(s - new[:, None]), 0.0)
    acc = _dot(share, v, acc * old_share[:, None], EXACT)
    return acc, new, total_share * old_share + tl.sum(share, 1)


@triton.jit
def attend(
    q, q_sink, k_pool, v_pool, M, tiles, tables, sink_tokens, window_starts, row_index, positions, ancestors,
    sink_logits, scale, partial, partial_sums, planes, o_quants, o_facts, natural, short,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, BK: tl.constexpr, D2: tl.constexpr,
    B2: tl.constexpr, BV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, TABLE_STRIDE: tl.constexpr,
    SPLITS: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, SINKS: tl.constexpr,
    HAS_SINK_LOGITS: tl.constexpr, TREE: tl.constexpr, EXACT: tl.constexpr, KP: tl.constexpr, FORMATS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid (tiles, kv heads, splits); `tiles` int32 [T, 4]: sequence, first row, rows (or 0), first row of all.

    Queries q [M, HEADS, DK] are rotated already, and `prepare` has written the rows' keys. D2 > 0 is latent attention:
    keys are [DK - D2 latent, D2 rotated], values the latents. The result [M, HEADS * DV] is stored as activation rows.
    """
    start_early(PDL)
    wait_for_inputs(PDL)
    GROUP: tl.constexpr = HEADS // KV_HEADS
    tile, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    sequence, first_row = tl.load(tiles + tile * 4), tl.load(tiles + tile * 4 + 1)
    count, tree_row = tl.load(tiles + tile * 4 + 2), tl.load(tiles + tile * 4 + 3)
    if count == 0:
        return
    i = tl.arange(0, BM)
    valid = i < count * GROUP
    row = first_row + tl.where(valid, i // GROUP, 0)
    head = kv_head * GROUP + i % GROUP
    own = tl.load(row_index + row)
    place = tl.load(positions + row)
    sinks = tl.load(sink_tokens + sequence) if SINKS else 0
    shift = tl.load(window_starts + sequence) - sinks if SINKS or WINDOW else 0  # position - index behind the sinks
    stop = tl.max(tl.where(valid, own, 0), 0) + 1
    start = sinks
    if WINDOW:
        lowest = (place - WINDOW + 1 - shift).to(tl.int32)
        start = tl.maximum(start, tl.min(tl.where(valid, lowest, 2147483647), 0))
    start = tl.minimum(start, tl.maximum(stop, sinks))
    total = sinks + tl.maximum(stop - start, 0)
    chunk = tl.cdiv(tl.cdiv(total, SPLITS), BN) * BN
    begin = split * chunk
    end = tl.minimum(begin + chunk, total)
    table = tables + sequence * TABLE_STRIDE
    index, c, ok, k, k2, v = _load_tile(
        k_pool, v_pool, table, kv_head, begin, end, start, sinks, KV_HEADS, DK, DV, BK, D2, B2, BV, BN
    )
    d = tl.arange(0, BK)
    D1: tl.constexpr = DK - D2
    mask = valid[:, None] & (d < D1)[None, :]
    query = _load_query(q, row, head, d, mask, HEADS, DK)
    sink_query, query2, sink_query2 = query, query, query
    if SINKS:
        sink_query = _load_query(q_sink, row, head, d, mask, HEADS, DK)
    if D2:
        d = D1 + tl.arange(0, B2)
        mask = valid[:, None] & (d < DK)[None, :]
        query2 = _load_query(q, row, head, d, mask, HEADS, DK)
        sink_query2 = query2
        if SINKS:
            sink_query2 = _load_query(q_sink, row, head, d, mask, HEADS, DK)
    largest = tl.full([BM], FAR, tl.float32)
    total_share = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, BV], tl.float32)
    if HAS_SINK_LOGITS:
        if split == 0:  # a score without a value
            largest = tl.load(sink_logits + head, mask=valid, other=0.0) * LOG2E
            total_share += 1.0
    acc, largest, total_share = _update(
        acc, largest, total_share, query, query2, sink_query, sink_query2, k, k2, v, index, c, ok, begin, sinks,
        shift, row, own, place, valid, tree_row, row_index, positions, ancestors, M, scale, BM, BN, D2, WINDOW,
        SOFTCAP, SINKS, TREE, EXACT,
    )
    for c0 in range(begin + BN, end, BN):
        index, c, ok, k, k2, v = _load_tile(
            k_pool, v_pool, table, kv_head, c0, end, start, sinks, KV_HEADS, DK, DV, BK, D2, B2, BV, BN
        )
        acc, largest, total_share = _update(
            acc, largest, total_share, query, query2, sink_query, sink_query2, k, k2, v, index, c, ok, c0, sinks,
            shift, row, own, place, valid, tree_row, row_index, positions, ancestors, M, scale, BM, BN, D2, WINDOW,
            SOFTCAP, SINKS, TREE, EXACT,
        )
    if SPLITS > 1:
        dv = tl.arange(0, BV)
        job = tile * KV_HEADS + kv_head
        values_at = partial + (job * SPLITS * BM + i)[:, None] * BV + dv[None, :]
        sums_at = partial_sums + job * SPLITS * (2 * BM) + i
        tl.store(values_at + split * (BM * BV), acc, mask=valid[:, None])
        tl.store(sums_at + split * (2 * BM), largest, mask=valid)
        tl.store(sums_at + split * (2 * BM) + BM, total_share, mask=valid)
        return
    acc = acc / tl.where(total_share > 0, total_share, 1.0)[:, None]
    WIDTH: tl.constexpr = 16 if DV % 16 == 0 else (8 if DV % 8 == 0 else 1)
    A: tl.constexpr = BM * BV // WIDTH
    a = tl.arange(0, A)
    line, column = a // (BV // WIDTH), a % (BV // WIDTH) * WIDTH
    used = (line < count * GROUP) & (column < DV)
    out_row = first_row + tl.where(used, line // GROUP, 0)
    out_start = (kv_head * GROUP + line % GROUP) * DV + column
    store_activation(
        planes, o_quants, o_facts, natural, short, out_row, out_start, tl.reshape(acc, [A, WIDTH]), used, KP,
        FORMATS,
    )


@triton.jit
def merge(
    partial, partial_sums, tiles, planes, o_quants, o_facts, natural, short, HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr, DV: tl.constexpr, BV: tl.constexpr, BM: tl.constexpr, SPLITS: tl.constexpr,
    KP: tl.constexpr, FORMATS: tl.constexpr, PDL: tl.constexpr,
):
    """What `attend` with SPLITS > 1 left in parts, as its result; grid (tiles, kv heads, lines of a tile)."""
    start_early(PDL)
    wait_for_inputs(PDL)
    GROUP: tl.constexpr = HEADS // KV_HEADS
    tile, kv_head, line = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first_row, count = tl.load(tiles + tile * 4 + 1), tl.load(tiles + tile * 4 + 2)
    if line >= count * GROUP:
        return
    job = (tile * KV_HEADS + kv_head) * SPLITS
    PADDED: tl.constexpr = triton.next_power_of_2(SPLITS)
    split = tl.arange(0, PADDED)
    sums = partial_sums + (job + split) * (2 * BM) + line
    parts_largest = tl.load(sums, mask=split < SPLITS, other=FAR)
    largest = tl.max(parts_largest, 0)
    shares = tl.load(sums + BM, mask=split < SPLITS, other=0.0)
    total_share = tl.sum(shares * tl.exp2(parts_largest - largest), 0)
    CHUNK: tl.constexpr = min(PADDED, max(1, 8192 // BV))  # of parts at a time: as many as registers hold
    d = tl.arange(0, BV)
    acc = tl.zeros([BV], tl.float32)
    for s0 in tl.static_range(0, SPLITS, CHUNK):
        split = s0 + tl.arange(0, CHUNK)
        ok = split < SPLITS
        factor = tl.exp2(tl.load(partial_sums + (job + split) * (2 * BM) + line, mask=ok, other=FAR) - largest)
        at = partial + ((job + split) * BM + line)[:, None] * BV + d[None, :]
        acc += tl.sum(tl.load(at, mask=ok[:, None], other=0.0) * factor[:, None], 0)
    acc = acc / tl.where(total_share > 0, total_share, 1.0)
    WIDTH: tl.constexpr = 16 if DV % 16 == 0 else (8 if DV % 8 == 0 else 1)
    A: tl.constexpr = BV // WIDTH
    column = tl.arange(0, A) * WIDTH
    row = first_row + line // GROUP + tl.zeros([A], tl.int32)
    start = (kv_head * GROUP + line % GROUP) * DV + column
    store_activation(
        planes, o_quants, o_facts, natural, short, row, start, tl.reshape(acc, [A, WIDTH]), column < DV, KP,
        FORMATS,
    )

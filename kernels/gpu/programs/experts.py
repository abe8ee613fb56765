"""Mixtures of experts: the router's choice, the sorting of tokens by expert, and decoding through chosen experts."""

import triton
import triton.language as tl

from .common import activate, gated, sigmoid, start_early, store_activation_part, wait_for_inputs
from .gemv import finish_rows, request, sum_threads

SOFTMAX = tl.constexpr(0)
SOFTMAX_CHOSEN = tl.constexpr(1)
SIGMOID = tl.constexpr(2)
SMALLEST_SUM = tl.constexpr(6.103515625e-5)


@triton.jit
def choose(
    logits, selection_bias, chosen, shares, M, weight_scale, STRIDE: tl.constexpr, EXPERTS: tl.constexpr,
    PADDED: tl.constexpr, TOP_K: tl.constexpr, GATING: tl.constexpr, NORMALISE: tl.constexpr, HAS_BIAS: tl.constexpr,
    PDL: tl.constexpr,
):
    """The TOP_K best experts of row m and their shares: int32 and float32 [M, TOP_K]; ties to the lower."""
    start_early(PDL)
    wait_for_inputs(PDL)
    m = tl.program_id(0)
    e = tl.arange(0, PADDED)
    ok = e < EXPERTS
    logit = tl.load(logits + m * STRIDE + e, mask=ok, other=-float("inf"))
    if GATING == SOFTMAX:
        power = tl.exp(logit - tl.max(logit, 0))
        score = power / tl.sum(power, 0)
    elif GATING == SIGMOID:
        score = sigmoid(logit)
    else:
        score = logit
    wanted = score
    if HAS_BIAS:
        wanted = score + tl.load(selection_bias + e, mask=ok, other=0.0)
    wanted = tl.where(ok, wanted, -float("inf"))
    k = tl.arange(0, triton.next_power_of_2(TOP_K))
    ids = tl.zeros([triton.next_power_of_2(TOP_K)], tl.int32)
    values = tl.full([triton.next_power_of_2(TOP_K)], -float("inf"), tl.float32)
    for i in tl.static_range(TOP_K):
        best = tl.max(wanted, 0)
        found = tl.minimum(tl.min(tl.where((wanted == best) & ok, e, PADDED), 0), EXPERTS - 1)
        ids = tl.where(k == i, found, ids)
        values = tl.where(k == i, tl.sum(tl.where(e == found, score, 0.0), 0), values)
        wanted = tl.where(e == found, -float("inf"), wanted)
        ok = ok & (e != found)
    used = k < TOP_K
    if GATING == SOFTMAX_CHOSEN:
        power = tl.where(used, tl.exp(values - tl.max(values, 0)), 0.0)
        values = power / tl.sum(power, 0)
    if NORMALISE:
        values = values / tl.maximum(tl.sum(tl.where(used, values, 0.0), 0), SMALLEST_SUM)
    tl.store(chosen + m * TOP_K + k, ids, mask=used)
    tl.store(shares + m * TOP_K + k, values * weight_scale, mask=used)


@triton.jit
def sort_by_expert(
    chosen, live_rows, slots, experts, SLOTS: tl.constexpr, TOP_K: tl.constexpr, EXPERTS: tl.constexpr,
    PADDED: tl.constexpr, BM: tl.constexpr, TILES: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):
    """Sort SLOTS (row * TOP_K + rank) by expert into tiles of BM: slots int32 [TILES * BM], experts int32 [TILES].

    Unused entries are -1. Rows from `live_rows[0]` on are padding and get no place. One program; nothing goes to the
    host. Stable, hence always the same order.
    """
    start_early(PDL)
    wait_for_inputs(PDL)
    live = tl.load(live_rows) * TOP_K
    e = tl.arange(0, PADDED)
    for start in range(0, TILES * BM, BLOCK):
        i = start + tl.arange(0, BLOCK)
        tl.store(slots + i, -1, mask=i < TILES * BM)
    counts = tl.zeros([PADDED], tl.int32)
    for start in range(0, SLOTS, BLOCK):
        i = start + tl.arange(0, BLOCK)
        mine = tl.load(chosen + i, mask=i < live, other=-1)
        counts += tl.sum((mine[:, None] == e[None, :]).to(tl.int32), 0)
    tiles = (counts + BM - 1) // BM
    last = tl.cumsum(tiles, 0)
    offset = (last - tiles) * BM
    for start in range(0, TILES, BLOCK):
        t = start + tl.arange(0, BLOCK)
        owner = tl.sum((last[None, :] <= t[:, None]).to(tl.int32), 1)
        tl.store(experts + t, tl.where(owner < EXPERTS, owner, -1), mask=t < TILES)
    tl.debug_barrier()
    for start in range(0, SLOTS, BLOCK):
        i = start + tl.arange(0, BLOCK)
        mine = tl.load(chosen + i, mask=i < live, other=-1)
        same = (mine[:, None] == e[None, :]).to(tl.int32)
        rank = tl.cumsum(same, 0) - same
        place = tl.sum(same * (rank + offset[None, :]), 1)
        tl.store(slots + place, i, mask=mine >= 0)
        offset += tl.sum(same, 0)


@triton.jit
def expert_gemv(
    quants, high, scales, supers, quants_b, high_b, scales_b, supers_b, chosen, x, x_facts, bias, bias_b, y,
    planes, o_quants, o_facts, natural, N: tl.constexpr, KP: tl.constexpr,
    TOP_K: tl.constexpr, BY_SLOT: tl.constexpr, Q: tl.constexpr, H: tl.constexpr, S: tl.constexpr, P: tl.constexpr,
    U: tl.constexpr, W: tl.constexpr, G: tl.constexpr, BITS: tl.constexpr, FORM: tl.constexpr, BYTES: tl.constexpr,
    GATED: tl.constexpr, PLAIN: tl.constexpr, HAS_BIAS: tl.constexpr, ACTIVATION: tl.constexpr, OUT_KP: tl.constexpr,
    FORMATS: tl.constexpr, PDL: tl.constexpr,
):
    """One slot (row, rank) of one row of x through its expert: grid (N / R, slots).

    Inner activations [slots, OUT_KP], or with PLAIN the product y [slots, N]. BY_SLOT: x has a row a slot, else a row
    a token. An expert's arrays are Q, H, S and P elements long.
    """
    start_early(PDL)
    R: tl.constexpr = 4 * W * G
    row0 = tl.program_id(0) * R
    slot = tl.program_id(1)
    wait_for_inputs(PDL)
    expert = tl.load(chosen + slot).to(tl.int64)
    if expert < 0:  # it is elsewhere, and the slot's share is zero
        return
    first = request(
        quants + expert * Q, high + expert * H, scales + expert * S, supers + expert * P, row0, 0, KP, U, W, G, BITS,
        FORM,
    )
    x_row = slot if BY_SLOT else slot // TOP_K
    x += x_row * (KP // 4 if BYTES else KP)
    x_facts += x_row * (KP // 8)
    rows = finish_rows(
        quants + expert * Q, high + expert * H, scales + expert * S, supers + expert * P, row0, first, x, x_facts,
        KP, 1, U, W, G, BITS, FORM, BYTES,
    )
    if GATED:
        first = request(
            quants_b + expert * Q, high_b + expert * H, scales_b + expert * S, supers_b + expert * P, row0, 0, KP, U,
            W, G, BITS, FORM,
        )
        rows = rows + finish_rows(
            quants_b + expert * Q, high_b + expert * H, scales_b + expert * S, supers_b + expert * P, row0, first, x,
            x_facts, KP, 1, U, W, G, BITS, FORM, BYTES,
        )
        rows = sum_threads(rows, 2, R)
    else:
        rows = sum_threads(rows, 1, R)
    e = row0 + tl.arange(0, R)
    ok = e < N
    o = rows[0]
    if HAS_BIAS:
        o += tl.load(bias + expert * N + e, mask=ok, other=0.0)
    if PLAIN:
        tl.store(y + slot * N + e, o, mask=ok)
    else:
        if GATED:
            b = rows[1]
            if HAS_BIAS:
                b += tl.load(bias_b + expert * N + e, mask=ok, other=0.0)
            o = gated(o, b, ACTIVATION)
        else:
            o = activate(o, ACTIVATION)
        o = tl.where(ok, o, 0.0)
        store_activation_part(
            planes, o_quants, o_facts, natural, planes, slot, e, o, e < OUT_KP, OUT_KP, FORMATS, 1.0
        )

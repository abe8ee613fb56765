"""Weights that cross while a step runs: copying experts that are hit, and adding up what pieces of a block give."""

import triton
import triton.language as tl

from .common import sum_of_parts


@triton.jit
def copy_hit(source, target, chosen, table, COUNT, WORDS, BLOCK: tl.constexpr, SCAN: tl.constexpr):
    """Copy WORDS int32 of expert `program_id(0)` from the host's memory, if any of COUNT choices is that expert.

    `table` says for every expert of the layer its number in source and target, or -1. Grid (experts, shares of the
    words).
    """
    own = tl.program_id(0)
    hits = 0
    for start in range(0, COUNT, SCAN):
        i = start + tl.arange(0, SCAN)
        expert = tl.load(chosen + i, mask=i < COUNT, other=0)
        place = tl.load(table + expert, mask=i < COUNT, other=-1)
        hits += tl.sum((place == own).to(tl.int32), 0)
    if hits > 0:
        first = own.to(tl.int64) * WORDS
        for start in range(tl.program_id(1) * BLOCK, WORDS, tl.num_programs(1) * BLOCK):
            i = start + tl.arange(0, BLOCK)
            tl.store(target + first + i, tl.load(source + first + i, mask=i < WORDS), mask=i < WORDS)


@triton.jit
def take_choice(all_chosen, all_shares, table, chosen, shares, COUNT, BLOCK: tl.constexpr):
    """The choices in a piece's own numbers: -1 and a share of 0 for experts that are elsewhere."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = i < COUNT
    own = tl.load(table + tl.load(all_chosen + i, mask=ok, other=0), mask=ok, other=-1)
    share = tl.load(all_shares + i, mask=ok, other=0.0)
    tl.store(chosen + i, own, mask=ok)
    tl.store(shares + i, tl.where(own < 0, 0.0, share), mask=ok)


@triton.jit
def count_choices(chosen, live_rows, counts, TOP_K, COUNT, BLOCK: tl.constexpr):
    """counts[expert] += how often it was chosen by rows that are not padding."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = i < tl.minimum(COUNT, tl.load(live_rows) * TOP_K)
    tl.atomic_add(counts + tl.load(chosen + i, mask=ok, other=0), 1, mask=ok)


@triton.jit
def add_up(
    parts, shares, extra, extra_gate, total, K, PART_STEP, ROW_STEP, PARTS: tl.constexpr, HAS_SHARES: tl.constexpr,
    HAS_EXTRA: tl.constexpr, HAS_EXTRA_GATE: tl.constexpr, FIRST: tl.constexpr, BLOCK: tl.constexpr,
):
    """total [M, K] (+)= the sum of PARTS partial results (of experts: weighted by `shares`) + extra.

    Grid (M, blocks of K); FIRST: what is in `total` counts for nothing.
    """
    m = tl.program_id(0)
    e = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ok = e < K
    new = sum_of_parts(
        parts, shares, extra, extra_gate, m, e, ok, tl.zeros([BLOCK], tl.float32), K, PART_STEP,
        ROW_STEP, PARTS, HAS_SHARES, HAS_EXTRA, HAS_EXTRA_GATE,
    )
    if not FIRST:
        new += tl.load(total + m * K + e, mask=ok, other=0.0)
    tl.store(total + m * K + e, new, mask=ok)

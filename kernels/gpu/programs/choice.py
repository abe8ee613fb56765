"""The best tokens of a row of logits, found where the logits are: only ids and their logits go to the host."""

import triton
import triton.language as tl

from .common import start_early, wait_for_inputs


@triton.jit
def best_of_part(
    logits, values, ids, V: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr, COUNT: tl.constexpr,
    PDL: tl.constexpr,
):
    """The COUNT largest logits of part p of row m, ties to the lower id: [M, PARTS, COUNT]; grid (M, PARTS)."""
    start_early(PDL)
    wait_for_inputs(PDL)
    m, p = tl.program_id(0), tl.program_id(1)
    i = p * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits + m.to(tl.int64) * V + i, mask=i < V, other=-float("inf"))
    x = tl.where(x == x, x, float("inf"))  # a NaN must be seen, not skipped
    left = i < V
    for c in range(COUNT):
        best = tl.max(tl.where(left, x, -float("inf")), 0)
        found = tl.min(tl.where(left & (x == best), i, V), 0)
        tl.store(values + (m * PARTS + p) * COUNT + c, best)
        tl.store(ids + (m * PARTS + p) * COUNT + c, found)
        left = left & (i != found)


@triton.jit
def best_of_parts(
    values, ids, out_values, out_ids, N: tl.constexpr, PADDED: tl.constexpr, V: tl.constexpr, COUNT: tl.constexpr,
    PDL: tl.constexpr,
):
    """The COUNT best of N candidates of each row, best first: out_values, out_ids [M, COUNT]; grid (M,)."""
    start_early(PDL)
    wait_for_inputs(PDL)
    m = tl.program_id(0)
    i = tl.arange(0, PADDED)
    x = tl.load(values + m * N + i, mask=i < N, other=-float("inf"))
    token = tl.load(ids + m * N + i, mask=i < N, other=V)
    left = token < V
    for c in range(COUNT):
        best = tl.max(tl.where(left, x, -float("inf")), 0)
        found = tl.min(tl.where(left & (x == best), token, V), 0)
        tl.store(out_values + m * COUNT + c, best)
        tl.store(out_ids + m * COUNT + c, found)
        left = left & (token != found)

"""Top-k: the k best tokens (https://arxiv.org/abs/1805.04833)."""

from __future__ import annotations

from .candidates import Candidates


def top_k(candidates: Candidates, k: int) -> Candidates:
    """Keep the `k` best, the lower ids on ties; 0 or less, or k at least the number of candidates: no change."""
    if k <= 0 or k >= len(candidates.ids):
        return candidates
    near = candidates.near_best()
    pool = candidates.keep(near) if len(near) >= k else candidates
    return pool.keep(pool.descending()[:k])

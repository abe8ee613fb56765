"""Top-p, or nucleus sampling (https://arxiv.org/abs/1904.09751)."""

from __future__ import annotations

import numpy as np

from .candidates import Candidates


def top_p(candidates: Candidates, p: float) -> Candidates:
    """Keep the smallest set of best tokens whose probability reaches `p`; 1: no change, 0: the best one."""
    if p >= 1:
        return candidates
    probabilities = candidates.probabilities()
    near = candidates.near_best()
    if probabilities[near].sum() >= p:  # the nucleus lies inside: sort only that part
        candidates, probabilities = candidates.keep(near), probabilities[near]
    order = candidates.descending()
    count = int(np.searchsorted(np.cumsum(probabilities[order]), p)) + 1
    return candidates.keep(order[:count])

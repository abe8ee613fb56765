"""Min-p: drop what is unlikely relative to the best token (https://arxiv.org/abs/2407.01082)."""

from __future__ import annotations

import math

from .candidates import Candidates


def min_p(candidates: Candidates, p: float) -> Candidates:
    """Keep tokens of at least `p` times the probability of the best one; 0: no change."""
    if p <= 0:
        return candidates
    return candidates.keep(candidates.logits >= candidates.logits.max() + math.log(p))

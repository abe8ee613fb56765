"""Locally typical sampling (https://arxiv.org/abs/2202.00666)."""

from __future__ import annotations

import numpy as np

from .candidates import Candidates


def typical_p(candidates: Candidates, p: float) -> Candidates:
    """Keep the tokens whose surprise is nearest to the entropy, up to probability `p`; 1: no change."""
    if p >= 1:
        return candidates
    probabilities = candidates.probabilities()
    with np.errstate(divide="ignore"):
        surprise = -np.log(probabilities)
    entropy = float(np.sum(probabilities * np.where(probabilities > 0, surprise, 0.0)))
    order = np.argsort(np.abs(surprise - entropy), kind="stable")
    count = int(np.searchsorted(np.cumsum(probabilities[order]), p)) + 1
    return candidates.keep(np.sort(order[:count]))

"""XTC, exclude top choices (https://github.com/oobabooga/text-generation-webui/pull/6335)."""

from __future__ import annotations

import numpy as np

from .candidates import Candidates


def xtc(candidates: Candidates, threshold: float, probability: float, draw: float) -> Candidates:
    """Of the tokens at or above `threshold` keep only the least likely, if `draw` (in [0, 1)) is below `probability`.

    Nothing happens when fewer than two tokens reach the threshold, so a sure choice is never lost.
    """
    if probability <= 0 or draw >= probability:
        return candidates
    probabilities = candidates.probabilities()
    above = np.flatnonzero(probabilities >= threshold)
    if len(above) < 2:
        return candidates
    order = above[np.lexsort((candidates.ids[above], -probabilities[above]))]
    chosen = np.ones(len(candidates.ids), dtype=np.bool_)
    chosen[order[:-1]] = False
    return candidates.keep(chosen)

"""One draw from the softmax of a whole vocabulary, in blocks: a running sum over all of it would take too long."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

BLOCK = 256


def draw_plain(logits: npt.NDArray[np.float32], temperature: float, draw: float) -> int:
    """The token at `draw` (0 to 1) of the cumulative probabilities; one of probability zero is never chosen."""
    weights = logits.astype(np.float64)
    weights -= weights.max()  # first, so that a tiny temperature cannot overflow
    weights /= max(temperature, 1e-6)
    np.exp(weights, out=weights)
    whole = len(weights) // BLOCK * BLOCK
    sums = np.append(weights[:whole].reshape(-1, BLOCK).sum(axis=1), weights[whole:].sum())
    ends = np.cumsum(sums)
    target = draw * ends[-1]
    block = min(int(np.searchsorted(ends, target, side="right")), len(ends) - 1)
    inside = weights[block * BLOCK : (block + 1) * BLOCK]
    before = float(ends[block - 1]) if block else 0.0
    index = int(np.searchsorted(np.cumsum(inside), target - before, side="right"))
    if index < len(inside) and inside[index] > 0:
        return block * BLOCK + index
    return _last_possible(weights, block)


def _last_possible(weights: npt.NDArray[np.float64], block: int) -> int:
    """Rounding led behind the last weight of a block: that one, or the last one of those before."""
    return int(np.flatnonzero(weights[: (block + 1) * BLOCK])[-1])

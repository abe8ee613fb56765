"""How much the residual stream loses when the neurons of a layer with the lowest scores are left out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float32]

LEAST_WEIGHT = 1e-6  # of a neuron, relative to the mean: thresholds stay finite


@dataclass(frozen=True, slots=True)
class Cut:
    """`level`: scores times weights up to it are left out. Shares of all (token, neuron) pairs, and the loss."""

    level: float
    kept: float  # whose score is above the level
    fired: float  # of those, that are not zero
    loss: float  # of the stream's square, mean over tokens


class LossCurve:
    """Pairs (token, neuron) by rising score; losses add up, as if the outputs of neurons were at right angles."""

    def __init__(self, scores: Floats, weights: Floats, values: Floats, sizes: Floats, stream: Floats) -> None:
        """`scores` and `values` [T, neurons], `sizes` [neurons] of down columns, `stream` [T, width] behind the block.

        A neuron's scores are multiplied with its weight [neurons], so that neurons with small outputs go first.
        """
        squared = np.maximum((stream.astype(np.float64) ** 2).sum(axis=1), 1e-30)
        lost = ((values * sizes).astype(np.float64) ** 2 / squared[:, None]).reshape(-1) / len(values)
        weighted = (scores * floored(weights)).reshape(-1)
        order = np.argsort(weighted, kind="stable")
        self._scores = weighted[order]
        self._lost = np.concatenate([[0.0], np.cumsum(lost[order])])
        self._fires = np.concatenate([[0], np.cumsum(values.reshape(-1)[order] != 0)])

    def cut(self, price: float) -> Cut:
        """The cut for which loss - price * (share left out) is least; pairs of one score stay together."""
        shares = np.arange(len(self._lost)) / max(1, len(self._scores))
        count = int(np.argmin(self._lost - price * shares))
        if count == 0:
            return self._at(0, -np.inf)
        level = float(self._scores[count - 1])
        return self._at(int(np.searchsorted(self._scores, level, side="right")), level)

    def _at(self, count: int, level: float) -> Cut:
        total = len(self._scores)
        fired = (self._fires[-1] - self._fires[count]) / total
        return Cut(level, (total - count) / total, float(fired), float(self._lost[count]))


def floored(weights: Floats) -> Floats:
    """Weights of which none is too small to divide by."""
    return np.maximum(weights, np.float32(LEAST_WEIGHT) * max(float(weights.mean()), 1e-30)).astype(np.float32)


def thresholds_of(level: float, weights: Floats) -> Floats:
    """For each neuron the score that it must be above."""
    with np.errstate(over="ignore"):
        return np.asarray(np.float32(level) / floored(weights), np.float32)

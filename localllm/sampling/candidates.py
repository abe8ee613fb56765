"""The tokens that are still in play, and the softmax over them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_TAIL = 16.0  # logits this far below the best hold less than one part in ten million each


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """Ids (int64, ascending unless a filter sorted them) with their logits (float64)."""

    ids: npt.NDArray[np.int64]
    logits: npt.NDArray[np.float64]

    def keep(self, chosen: npt.NDArray[np.bool_] | npt.NDArray[np.intp]) -> Candidates:
        """Those that a mask or an index array selects."""
        return Candidates(self.ids[chosen], self.logits[chosen])

    def probabilities(self) -> npt.NDArray[np.float64]:
        """Softmax of the logits."""
        weights = np.exp(self.logits - self.logits.max())
        result: npt.NDArray[np.float64] = weights / weights.sum()
        return result

    def descending(self) -> npt.NDArray[np.intp]:
        """Indices from the best logit to the worst; the lower id first on ties."""
        return np.lexsort((self.ids, -self.logits))

    def near_best(self) -> npt.NDArray[np.intp]:
        """Indices of the few logits near the best: a cheap superset of the head for vocabularies of 262,144."""
        return np.flatnonzero(self.logits >= self.logits.max() - _TAIL)

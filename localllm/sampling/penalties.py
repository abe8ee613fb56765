"""Penalties on tokens that were used before.

Repetition: https://arxiv.org/abs/1909.05858. Presence and frequency: the OpenAI API reference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Sequence


def repetition_penalty(logits: npt.NDArray[np.float64], recent: Sequence[int], penalty: float) -> None:
    """Divide positive and multiply negative logits of the `recent` tokens by `penalty`, in place; 1: no change."""
    if penalty == 1 or not recent:
        return
    ids = np.unique(np.asarray(recent, dtype=np.int64))
    values = logits[ids]
    logits[ids] = np.where(values > 0, values / penalty, values * penalty)


def count_penalties(
    logits: npt.NDArray[np.float64], generated: Sequence[int], presence: float, frequency: float
) -> None:
    """Subtract `presence` once and `frequency` per occurrence for each `generated` token, in place; 0: no change."""
    if (presence == 0 and frequency == 0) or not generated:
        return
    ids, counts = np.unique(np.asarray(generated, dtype=np.int64), return_counts=True)
    logits[ids] -= presence + frequency * counts

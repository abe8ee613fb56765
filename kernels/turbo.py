"""Lossy activation sparsity as data: what says, for each layer, which neurons a token leaves out.

A layer's neurons have scores, and those whose score is not above their threshold are left out. The rest is
computed exactly. Where the score is a guess, the gate of the neurons that are kept is computed too, so a neuron that is
kept needlessly changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

EXTRA_INPUTS, EXTRA_BYTES = 32, 34  # of a sketch: for each neuron a block of Q8_0


class Scores(Enum):
    """Where the scores of a layer come from."""

    GATE = "gate"  # |activation(gate)|, computed exactly (CATS, https://arxiv.org/abs/2404.08763)
    SKETCH = "sketch"  # a coarse form of the gate
    STORED = "stored"  # the two small matrices that PowerInfer's files carry


@dataclass(frozen=True, slots=True, eq=False)
class Sketch:
    """score = scales * (signs of the gate's weights . x) + extra . x[inputs] + bias.

    `signs` are not held here: they are those of the gate (of the up matrix, without a gate), +1 for 0. `scales` and
    `bias` float32 [neurons], `inputs` int32 [32], `extra` uint8 [neurons, 34]: a block of Q8_0 each.
    """

    scales: npt.NDArray[np.float32]
    bias: npt.NDArray[np.float32]
    inputs: npt.NDArray[np.int32]
    extra: npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class LayerTurbo:
    """What a layer leaves out: neurons whose score is not above their threshold, float32 [neurons].

    `sketch` only for such scores.
    """

    scores: Scores
    thresholds: npt.NDArray[np.float32]
    sketch: Sketch | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Shortlist:
    """Which logits are worth computing: those for which a coarse head's are within `margin` of its largest.

    The coarse head is the model's in Q4_0, plus extra . x[inputs]: `inputs` int32 [32], `extra` uint8 [vocabulary, 34].
    The other logits stay what the coarse head gives.
    """

    inputs: npt.NDArray[np.int32]
    extra: npt.NDArray[np.uint8]
    margin: float


@dataclass(frozen=True, slots=True, eq=False)
class Turbo:
    """By layer; None: the layer is computed exactly. Without a shortlist all logits are."""

    layers: tuple[LayerTurbo | None, ...]
    shortlist: Shortlist | None = None

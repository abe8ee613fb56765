"""What each layer may leave out for how much loss, from what its feed-forward block reads of a text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from localllm.kernels.reference.operations import activate, normalise
from localllm.kernels.reference.weights import Weights
from localllm.kernels.turbo import LayerTurbo, Scores

from .curve import Cut, LossCurve, thresholds_of
from .sketch import fit_sketch, sketched
from .worth import dense_cost, gate_cost, sketch_cost

if TYPE_CHECKING:
    import numpy.typing as npt

    from localllm.kernels.spec import FeedForward

    Floats = npt.NDArray[np.float32]

# What it must save to lose so much: the same for all layers, so nothing is lost in one that another would save cheaper.
# At the first price only what is lost for nothing is left out.
PRICES = (1e-12, *(10 ** (-5 + k / 4) for k in range(21)))


@dataclass(frozen=True, slots=True, eq=False)
class LayerChoice:
    """A way to compute a layer, and its cut."""

    turbo: LayerTurbo
    cut: Cut


def stored_choice(block: FeedForward, threshold: float) -> LayerChoice:
    """PowerInfer's own predictor with the threshold of its file, whatever it loses: scores from that on are kept."""
    least = np.nextafter(np.float32(threshold), np.float32(-np.inf))
    thresholds = np.full(block.up.weight.rows, least, np.float32)
    return LayerChoice(LayerTurbo(Scores.STORED, thresholds), Cut(threshold, float("nan"), float("nan"), float("nan")))


def layer_choices(block: FeedForward, inputs: Floats, scale: float = 1.0) -> tuple[LayerChoice | None, ...]:
    """For each of `PRICES` the cheapest way to compute a block; None where that is to compute all of it.

    `inputs` [T, width]: the residual stream before its norm, to which its output * scale comes.
    """
    weights = Weights(np.dtype(np.float32), 0)
    x = inputs if block.norm is None else normalise(inputs, block.norm, weights)
    first = block.gate or block.up
    matrix = weights.array(first.weight)
    bias = None if first.bias is None else weights.array(first.bias)
    gates = x @ matrix.T if bias is None else x @ matrix.T + bias
    fired = activate(block.activation, gates, None)
    up = None if block.gate is None else weights.linear(x, block.up)
    values = activate(block.activation, gates, up)
    down = weights.array(block.down.weight)
    down = down if block.down_transposed else down.T  # a row a neuron
    sizes, outputs = np.sqrt((down**2).sum(axis=1)), values @ down
    importance = sizes if up is None else sizes * np.sqrt((up**2).mean(axis=0))
    stream = np.asarray(outputs if block.post_norm is not None else inputs / np.float32(scale) + outputs, np.float32)
    curve = LossCurve(np.abs(fired), importance, values, sizes, stream)
    sketch = sketch_curve = None
    if block.activation.sparse:
        sketch = fit_sketch(matrix, x, bias)
        sketch_curve = LossCurve(sketched(sketch, matrix, x), importance, values, sizes, stream)

    def at(price: float) -> LayerChoice | None:
        cut = curve.cut(price)
        cut = Cut(max(cut.level, 0.0), cut.kept, cut.fired, cut.loss)
        ways: list[tuple[float, LayerChoice | None]] = [(dense_cost(block), None)]
        turbo = LayerTurbo(Scores.GATE, thresholds_of(cut.level, importance))
        ways.append((gate_cost(block, cut), LayerChoice(turbo, cut)))
        if sketch is not None and sketch_curve is not None:
            cut = sketch_curve.cut(price)
            turbo = LayerTurbo(Scores.SKETCH, thresholds_of(cut.level, importance), sketch)
            ways.append((sketch_cost(block, cut), LayerChoice(turbo, cut)))
        return min(ways, key=lambda way: way[0])[1]

    return tuple(at(price) for price in PRICES)

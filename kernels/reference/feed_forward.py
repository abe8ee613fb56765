"""Dense feed-forward blocks and mixtures of experts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from localllm.kernels.spec import Gating

from .operations import activate, normalise, sigmoid, softmax

if TYPE_CHECKING:
    import numpy.typing as npt

    from localllm.kernels.spec import Activation, FeedForward, Linear, MixtureOfExperts

    from .weights import Real, Weights

_SMALLEST_SUM = 6.103515625e-5  # chosen expert weights are divided by no less than this


def feed_forward(x: Real, block: FeedForward, weights: Weights) -> Real:
    """What the block adds to x [M, hidden]."""
    if block.norm is not None:
        x = normalise(x, block.norm, weights)
    y = _neurons(x, block.gate, block.up, block.down, block.activation, block.down_transposed, weights)
    return y if block.post_norm is None else normalise(y, block.post_norm, weights)


def mixture_of_experts(x: Real, layer_input: Real, block: MixtureOfExperts, weights: Weights) -> Real:
    """What the block adds to x [M, hidden]; `layer_input` is the layer's x before attention."""
    if block.norm is not None:
        x = normalise(x, block.norm, weights)
    chosen, shares = route(layer_input if block.router_reads_layer_input else x, block, weights)
    y = np.zeros_like(x)
    for expert in np.unique(chosen):
        rows, ranks = np.nonzero(chosen == expert)
        parts = (block.gate, block.up, block.down)
        fed = _neurons(x[rows], *parts, block.activation, block.down_transposed, weights, int(expert))
        y[rows] += shares[rows, ranks, None] * fed
    if block.shared is not None:
        shared = feed_forward(x, block.shared, weights)
        if block.shared_gate is not None:
            shared = shared * sigmoid(weights.linear(x, block.shared_gate))
        y = y + shared
    return y if block.post_norm is None else normalise(y, block.post_norm, weights)


def route(x: Real, block: MixtureOfExperts, weights: Weights) -> tuple[npt.NDArray[np.int64], Real]:
    """The chosen experts [M, top_k] of each row and their weights; of equal scores the lower index wins."""
    logits = weights.linear(x, block.router)
    scores = {Gating.SOFTMAX: softmax, Gating.SIGMOID: sigmoid}.get(block.gating, np.asarray)(logits)
    selection = scores if block.selection_bias is None else scores + weights.array(block.selection_bias)
    chosen = np.argsort(-selection, axis=-1, kind="stable")[:, : block.top_k]
    shares = np.take_along_axis(scores, chosen, axis=-1)
    if block.gating is Gating.SOFTMAX_CHOSEN:
        shares = softmax(shares)
    if block.normalise:
        shares = shares / np.maximum(shares.sum(axis=-1, keepdims=True), x.dtype.type(_SMALLEST_SUM))
    return chosen, shares * x.dtype.type(block.weight_scale)


def _neurons(
    x: Real,
    gate: Linear | None,
    up: Linear,
    down: Linear,
    activation: Activation,
    down_transposed: bool,
    weights: Weights,
    expert: int | None = None,
) -> Real:
    """down(activation(gate(x)) * up(x)) of x [M, hidden]."""
    raised = weights.linear(x, up, expert)
    if gate is None:
        hidden = activate(activation, raised, None)
    else:
        hidden = activate(activation, weights.linear(x, gate, expert), raised)
    if not down_transposed:
        return weights.linear(hidden, down, expert)
    matrix = down.weight if expert is None else weights.expert(down.weight, expert)
    y = hidden @ weights.array(matrix)
    if down.bias is None:
        return y
    bias = weights.array(down.bias)
    return y + (bias if expert is None else bias[expert])

"""The dense feed-forward block of a layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from localllm.kernels.spec import Activation, FeedForward, Linear, Norm

from .attention import slice_linear

if TYPE_CHECKING:
    from .source import Source


def read_feed_forward(
    source: Source,
    layer: int,
    hidden: int,
    *,
    norm: Norm | None,
    activation: Activation = Activation.SILU,
    gated: bool = True,
    neurons: int | None = None,
    suffix: str = "",
    post_norm: str | None = None,
) -> FeedForward:
    """down(activation(gate(x)) * up(x)), or down(activation(up(x))) when not `gated`.

    PowerInfer's files store the down matrix a row a neuron (`ffn_down_t`), with a predictor of which neurons fire.
    A gated block without a gate tensor has gate and up fused in `ffn_up`, gate first. `suffix` is that of the tensor
    names ("_shexp": the shared expert).
    """
    prefix = f"blk.{layer}"
    if neurons is None:
        neurons = source.integer_of_layer("feed_forward_length", layer)
    transposed = source.has_tensor(f"{prefix}.ffn_down_t.weight")
    gate: Linear | None = None
    if gated and not source.has_tensor(f"{prefix}.ffn_gate{suffix}.weight"):
        fused = source.linear(f"{prefix}.ffn_up{suffix}", 2 * neurons, hidden)
        gate, up = slice_linear(fused, 0, neurons), slice_linear(fused, neurons, 2 * neurons)
    else:
        gate = source.linear(f"{prefix}.ffn_gate{suffix}", neurons, hidden) if gated else None
        up = source.linear(f"{prefix}.ffn_up{suffix}", neurons, hidden)
    return FeedForward(
        norm=norm,
        gate=gate,
        up=up,
        down=_transposed_down(source, prefix, hidden, neurons)
        if transposed
        else source.linear(f"{prefix}.ffn_down{suffix}", hidden, neurons),
        activation=source.activation(activation),
        post_norm=source.norm(f"{prefix}.{post_norm}", hidden) if post_norm else None,
        down_transposed=transposed,
        predictor=_predictor(source, prefix, hidden, neurons) if transposed else None,
    )


def _transposed_down(source: Source, prefix: str, hidden: int, neurons: int) -> Linear:
    weight = source.tensor(f"{prefix}.ffn_down_t.weight", (neurons, hidden))
    return Linear(weight, source.optional_vector(f"{prefix}.ffn_down_t.bias", hidden))


def _predictor(source: Source, prefix: str, hidden: int, neurons: int) -> tuple[Linear, Linear] | None:
    """fc2(relu(fc1(x))): a logit for each neuron; the rank between them differs from layer to layer."""
    shape = source.shape_of(f"{prefix}.fc1.weight")
    if shape is None:
        return None
    return source.linear(f"{prefix}.fc1", shape[0], hidden), source.linear(f"{prefix}.fc2", neurons, shape[0])

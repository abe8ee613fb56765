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

    A gated block without a gate tensor has gate and up fused in `ffn_up`, gate first. `suffix` is that of the tensor
    names ("_shexp": the shared expert).
    """
    prefix = f"blk.{layer}"
    if neurons is None:
        neurons = source.integer_of_layer("feed_forward_length", layer)
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
        down=source.linear(f"{prefix}.ffn_down{suffix}", hidden, neurons),
        activation=source.activation(activation),
        post_norm=source.norm(f"{prefix}.{post_norm}", hidden) if post_norm else None,
    )

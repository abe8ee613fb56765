"""The mixture-of-experts block of a layer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from localllm.errors import UnsupportedModelError
from localllm.gguf_io import GGUFError
from localllm.kernels.spec import Activation, FeedForward, Gating, Linear, MixtureOfExperts, Norm

if TYPE_CHECKING:
    from .source import Source

_GATINGS = {1: Gating.SOFTMAX, 2: Gating.SIGMOID, 3: Gating.SOFTMAX_CHOSEN}  # by the file's expert_gating_func


def read_experts(
    source: Source,
    layer: int,
    hidden: int,
    *,
    norm: Norm | None,
    activation: Activation = Activation.SILU,
    gating: Gating = Gating.SOFTMAX,
    normalise: bool,
    neurons: int | None = None,
    shared: FeedForward | None = None,
    shared_gate: Linear | None = None,
    router_reads_layer_input: bool = False,
) -> MixtureOfExperts:
    """Routed experts with stacked tensors; the file's own gating, normalisation and scale win over the arguments."""
    prefix = f"blk.{layer}"
    experts, top_k = expert_counts(source)
    if neurons is None:
        neurons = source.integer("expert_feed_forward_length", source.integer_of_layer("feed_forward_length", layer, 1))
    if source.integer("expert_group_count", 1, low=0) > 1:
        raise UnsupportedModelError(
            f"{source.key('expert_group_count')}: routing by groups of experts is not supported"
        )
    down_transposed = neurons != hidden and source.shape_of(f"{prefix}.ffn_down_exps.weight") == (
        experts,
        neurons,
        hidden,
    )
    down_shape = (neurons, hidden) if down_transposed else (hidden, neurons)
    return MixtureOfExperts(
        norm=norm,
        router=source.linear(f"{prefix}.ffn_gate_inp", experts, hidden),
        gate=source.stacked_linear(f"{prefix}.ffn_gate_exps", experts, neurons, hidden),
        up=source.stacked_linear(f"{prefix}.ffn_up_exps", experts, neurons, hidden),
        down=source.stacked_linear(f"{prefix}.ffn_down_exps", experts, *down_shape),
        experts=experts,
        top_k=top_k,
        activation=source.activation(activation),
        gating=_gating(source, gating),
        normalise=source.boolean("expert_weights_norm", normalise),
        weight_scale=source.optional_floating("expert_weights_scale") or 1.0,
        selection_bias=source.optional_vector(f"{prefix}.exp_probs_b.bias", experts),
        shared=shared,
        shared_gate=shared_gate,
        router_reads_layer_input=router_reads_layer_input,
        down_transposed=down_transposed,
    )


def expert_counts(source: Source) -> tuple[int, int]:
    """How many experts a layer has and how many a token uses."""
    experts = source.integer("expert_count", high=4096)
    top_k = source.integer("expert_used_count", high=4096)
    if top_k > experts:
        raise GGUFError(f"{source.key('expert_used_count')}: {top_k} of {experts} experts")
    return experts, top_k


def _gating(source: Source, default: Gating) -> Gating:
    if not source.has("expert_gating_func"):
        return default
    number = source.integer("expert_gating_func", low=0)
    if number == 0:
        return default
    if number not in _GATINGS:
        raise UnsupportedModelError(f"{source.key('expert_gating_func')}: {number} is not supported")
    return _GATINGS[number]


def read_shared_gate(source: Source, layer: int, hidden: int) -> Linear:
    """The row that scales a shared expert, stored as a vector, as a matrix of one row."""
    vector = source.tensor(f"blk.{layer}.ffn_gate_inp_shexp.weight", (hidden,))
    return Linear(replace(vector, shape=(1, hidden), data=vector.data[None]))

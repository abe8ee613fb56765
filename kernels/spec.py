"""What a model is: a tree of frozen blocks over tensors of a mapped file. Nothing here knows a device.

An architecture file (`localllm/models/<general.architecture>.py`) reads the metadata and returns a `ModelSpec`;
every executor runs any spec. Fused tensors of a file (qkv, gate_up) are given as row slices, so executors see one form.
Shapes are in numpy order: a `Linear` weight is (outputs, inputs) and computes x @ weight.T + bias.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from localllm.gguf_io import Tensor


class Activation(Enum):
    """The nonlinearity of a feed-forward block; with a gate it is applied to the gate."""

    SILU = "silu"
    GELU = "gelu"  # the exact one, with erf
    GELU_TANH = "gelu_tanh"
    RELU = "relu"
    RELU_SQUARED = "relu2"
    RELU_BOTH = "relu_both"  # relu(gate) * relu(up): Bamboo
    SWIGLU_CLAMPED = "swiglu_clamped"  # gpt-oss: min(g,7)*sigmoid(1.702 g)*(clip(u,-7,7)+1)

    @property
    def sparse(self) -> bool:
        """Whether a neuron with a non-positive gate contributes exactly nothing."""
        return self in (Activation.RELU, Activation.RELU_SQUARED, Activation.RELU_BOTH)


class Gating(Enum):
    """How router logits become expert weights."""

    SOFTMAX = "softmax"  # softmax over all experts, then the best k
    SOFTMAX_CHOSEN = "softmax_chosen"  # the best k, then softmax over those
    SIGMOID = "sigmoid"  # sigmoid of each, then the best k


@dataclass(frozen=True, slots=True, eq=False)
class Norm:
    """RMS norm (no `mean` subtraction) or layer norm, over the last dimension. `weight` None means no gain."""

    weight: Tensor | None
    eps: float
    bias: Tensor | None = None
    subtract_mean: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Linear:
    """x @ weight.T + bias; for experts both have a leading expert dimension."""

    weight: Tensor
    bias: Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Rope:
    """Rotary embedding of the first 2 * len(inverse_frequencies) values of a head.

    `inverse_frequencies` (float64) already contain linear or yarn scaling and per-dimension factors; cos and sin are
    multiplied by `magnitude`. Interleaved rotates pairs (2i, 2i+1), otherwise (i, i + half).
    """

    inverse_frequencies: npt.NDArray[np.float64]
    interleaved: bool
    magnitude: float = 1.0

    @property
    def dimensions(self) -> int:
        """Rotated values of a head; the rest pass through."""
        return 2 * len(self.inverse_frequencies)


@dataclass(frozen=True, slots=True, eq=False)
class Attention:
    """Grouped-query attention. `scale` multiplies q.k; `window` W lets position p see p-W+1..p.

    `query_norm`/`key_norm` act before rope (after it with `norm_after_rope`: Hunyuan). The shape of their weight says
    over what: (key_dim,) over each head, (heads * key_dim,) over all heads together, (heads, key_dim) over each head
    with a gain of its own (Command R+, StableLM 2). `sinks` is one learned logit a head that joins the softmax without
    a value. `softcap`: score = cap * tanh(score / cap), after `scale` and before the mask.
    """

    norm: Norm | None
    query: Linear
    key: Linear
    value: Linear
    output: Linear
    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    scale: float
    rope: Rope | None
    query_norm: Norm | None = None
    key_norm: Norm | None = None
    window: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None
    post_norm: Norm | None = None
    norm_after_rope: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, https://arxiv.org/abs/2405.04434).

    The cache holds one latent vector a token: `latent_rank` normalised values, then the rotated key part of
    `rope.dimensions` values. A head of the query is `nope_dim` values, then the rotated ones; key_up[h] @ q_nope gives
    the query in latent space (key_up: heads, latent_rank, nope_dim), and value_up[h] @ (attended latent) gives the
    value (value_up: heads, value_dim, latent_rank). `query` is either one Linear or (down, norm, up).
    """

    norm: Norm | None
    query: Linear | tuple[Linear, Norm, Linear]
    key_value_down: Linear
    latent_norm: Norm
    key_up: Tensor
    value_up: Tensor
    output: Linear
    heads: int
    latent_rank: int
    nope_dim: int
    value_dim: int
    scale: float
    rope: Rope
    window: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class FeedForward:
    """down(activation(gate(x)) * up(x)), or down(activation(up(x))) without a gate.

    `down_transposed`: the down matrix is stored (neurons, outputs), a row a neuron, as PowerInfer's files do.
    """

    norm: Norm | None
    gate: Linear | None
    up: Linear
    down: Linear
    activation: Activation
    post_norm: Norm | None = None
    down_transposed: bool = False
    predictor: tuple[Linear, Linear] | None = None  # PowerInfer's fc1, fc2; only `turbo` reads it


@dataclass(frozen=True, slots=True, eq=False)
class MixtureOfExperts:
    """The `top_k` best experts of a token, weighted and summed, plus an optional shared expert.

    Expert matrices are stacked: gate and up (experts, neurons, inputs), down (experts, outputs, neurons).
    `selection_bias` is added to the scores for the choice only. `normalise` divides the chosen weights by their sum
    (clamped at 6.1e-5), then all are multiplied by `weight_scale`. `shared_gate` scales the shared expert by a sigmoid.
    `router_reads_layer_input`: the router sees the layer's input before attention (SmallThinker).
    """

    norm: Norm | None
    router: Linear
    gate: Linear | None
    up: Linear
    down: Linear
    experts: int
    top_k: int
    activation: Activation
    gating: Gating
    normalise: bool
    weight_scale: float = 1.0
    selection_bias: Tensor | None = None
    shared: FeedForward | None = None
    shared_gate: Linear | None = None
    router_reads_layer_input: bool = False
    post_norm: Norm | None = None
    down_transposed: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """x += scale * attention(x); x += scale * feed_forward(x). `parallel`: both read the same x (Falcon, Phi-2).

    Every block applies its own `norm` first and its `post_norm` to what it adds; two blocks may share one Norm object.
    """

    attention: Attention | LatentAttention
    feed_forward: FeedForward | MixtureOfExperts
    residual_scale: float = 1.0
    parallel: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Embed:
    """Rows of `table` times `scale`; `positions` are learned absolute embeddings (GPT-2, OPT: offset by 2)."""

    table: Tensor
    scale: float = 1.0
    norm: Norm | None = None
    positions: Tensor | None = None
    position_offset: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Head:
    """logits = softcap(scale * linear(norm(x))); softcap(z) = cap * tanh(z / cap).

    A tied head's `linear.weight` is the embedding table's own Tensor object, so an executor can keep one copy.
    """

    norm: Norm | None
    linear: Linear
    scale: float = 1.0
    softcap: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ModelSpec:
    """A whole model. `context_length` is what it was trained for."""

    architecture: str
    name: str
    vocabulary_size: int
    hidden_size: int
    context_length: int
    embed: Embed
    layers: tuple[Layer, ...]
    head: Head

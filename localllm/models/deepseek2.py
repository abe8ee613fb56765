"""DeepSeek V2, V3, R1 and models of their shape: latent attention, a few dense layers, then experts.

https://arxiv.org/abs/2405.04434 and https://arxiv.org/abs/2412.19437
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from localllm.kernels.spec import FeedForward, Layer, MixtureOfExperts

from .parts.decoder import assemble, read_embed, read_head
from .parts.dimensions import read_dimensions
from .parts.experts import read_experts
from .parts.feed_forward import read_feed_forward
from .parts.latent_attention import read_latent_attention

if TYPE_CHECKING:
    from localllm.kernels.spec import ModelSpec

    from .parts.source import Source


def build(source: Source) -> ModelSpec:
    """The first `leading_dense_block_count` layers are dense; shared experts are one wider expert."""
    sizes = read_dimensions(source)
    dense_layers = source.integer("leading_dense_block_count", 0, low=0)
    layers = []
    for index in range(sizes.layers):
        attention = read_latent_attention(source, index, sizes)
        norm = source.norm(f"blk.{index}.ffn_norm", sizes.hidden)
        block: FeedForward | MixtureOfExperts
        if index < dense_layers:
            block = read_feed_forward(source, index, sizes.hidden, norm=norm)
        else:
            neurons = source.integer("expert_feed_forward_length")
            shared = None
            if count := source.integer("expert_shared_count", 0, low=0, high=4096):
                shared = read_feed_forward(
                    source, index, sizes.hidden, norm=None, neurons=neurons * count, suffix="_shexp"
                )
            block = read_experts(
                source, index, sizes.hidden, norm=norm, normalise=False, neurons=neurons, shared=shared
            )
        layers.append(Layer(attention, block))
    return assemble(source, sizes, read_embed(source, sizes), layers, read_head(source, sizes))

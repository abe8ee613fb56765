"""DeepSeek V2, V3, R1 and models of their shape: latent attention, a few dense layers, then experts.

https://arxiv.org/abs/2405.04434 and https://arxiv.org/abs/2412.19437
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from localllm.kernels.spec import Layer

from .parts.decoder import assemble, read_embed, read_head
from .parts.dimensions import read_dimensions
from .parts.latent_attention import read_latent_attention
from .parts.leading_dense import read_dense_or_experts

if TYPE_CHECKING:
    from localllm.kernels.spec import ModelSpec

    from .parts.source import Source


def build(source: Source) -> ModelSpec:
    """Shared experts are one wider expert; the file says how the router scores."""
    sizes = read_dimensions(source)
    layers = []
    for index in range(sizes.layers):
        attention = read_latent_attention(source, index, sizes)
        norm = source.norm(f"blk.{index}.ffn_norm", sizes.hidden)
        layers.append(Layer(attention, read_dense_or_experts(source, index, sizes.hidden, norm)))
    return assemble(source, sizes, read_embed(source, sizes), layers, read_head(source, sizes))

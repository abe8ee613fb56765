"""MiniCPM3: latent attention, with scales on embedding, residual and logits. https://arxiv.org/abs/2404.06395"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from localllm.kernels.spec import Layer

from .parts.decoder import assemble, read_embed, read_head
from .parts.dimensions import read_dimensions
from .parts.feed_forward import read_feed_forward
from .parts.latent_attention import read_latent_attention

if TYPE_CHECKING:
    from localllm.kernels.spec import ModelSpec

    from .parts.source import Source


def build(source: Source) -> ModelSpec:
    """Files do not state the scales: they are those of the published model."""
    sizes = read_dimensions(source)
    residual_scale = 1.4 / math.sqrt(sizes.layers)
    layers = []
    for index in range(sizes.layers):
        attention = read_latent_attention(source, index, sizes, interleaved=False)
        norm = source.norm(f"blk.{index}.ffn_norm", sizes.hidden)
        layers.append(Layer(attention, read_feed_forward(source, index, sizes.hidden, norm=norm), residual_scale))
    head = read_head(source, sizes, scale=256 / sizes.hidden)
    return assemble(source, sizes, read_embed(source, sizes, scale=12.0), layers, head)

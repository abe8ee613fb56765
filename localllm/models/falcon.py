"""Falcon 7B to 180B: both blocks read the same x. https://arxiv.org/abs/2311.16867"""

from __future__ import annotations

from typing import TYPE_CHECKING

from localllm.kernels.spec import Activation, Layer

from .parts.attention import read_attention
from .parts.decoder import assemble, read_embed, read_head
from .parts.dimensions import read_dimensions
from .parts.feed_forward import read_feed_forward
from .parts.rope import read_rope

if TYPE_CHECKING:
    from localllm.kernels.spec import ModelSpec

    from .parts.source import Source


def build(source: Source) -> ModelSpec:
    """The large models have a norm of its own for attention: `attn_norm_2`."""
    sizes = read_dimensions(source)
    rope = read_rope(source, sizes.rope_dimensions, interleaved=False)
    layers = []
    for index in range(sizes.layers):
        norm = source.norm(f"blk.{index}.attn_norm", sizes.hidden, layer_norm=True)
        own = source.optional_norm(f"blk.{index}.attn_norm_2", sizes.hidden, layer_norm=True)
        attention = read_attention(source, index, sizes, rope, norm=own or norm)
        block = read_feed_forward(source, index, sizes.hidden, norm=norm, activation=Activation.GELU, gated=False)
        layers.append(Layer(attention, block, parallel=True))
    return assemble(source, sizes, read_embed(source, sizes), layers, read_head(source, sizes, layer_norm=True))

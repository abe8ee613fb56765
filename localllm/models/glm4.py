"""GLM-4-0414 (9B and 32B): norms before and after each block. https://arxiv.org/abs/2406.12793"""

from __future__ import annotations

from typing import TYPE_CHECKING

from localllm.kernels.spec import Layer

from .parts.attention import read_attention
from .parts.decoder import assemble, read_embed, read_head
from .parts.dimensions import read_dimensions
from .parts.feed_forward import read_feed_forward
from .parts.rope import read_rope

if TYPE_CHECKING:
    from localllm.kernels.spec import ModelSpec

    from .parts.source import Source


def build(source: Source) -> ModelSpec:
    """Half of each head is rotated; gate and up are fused."""
    sizes = read_dimensions(source)
    rope = read_rope(source, sizes.rope_dimensions, interleaved=True)
    layers = []
    for index in range(sizes.layers):
        norm = source.norm(f"blk.{index}.attn_norm", sizes.hidden)
        attention = read_attention(source, index, sizes, rope, norm=norm, post_norm="post_attention_norm")
        norm = source.norm(f"blk.{index}.ffn_norm", sizes.hidden)
        block = read_feed_forward(source, index, sizes.hidden, norm=norm, post_norm="post_ffw_norm")
        layers.append(Layer(attention, block))
    return assemble(source, sizes, read_embed(source, sizes), layers, read_head(source, sizes))

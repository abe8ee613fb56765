"""Phi-3 and Phi-4: query, key and value fused, gate and up fused. https://arxiv.org/abs/2404.14219"""

from __future__ import annotations

from typing import TYPE_CHECKING

from localllm.kernels.spec import Layer

from .parts.attention import read_attention, sliding_window
from .parts.decoder import assemble, read_embed, read_head
from .parts.dimensions import read_dimensions
from .parts.feed_forward import read_feed_forward
from .parts.rope import read_rope

if TYPE_CHECKING:
    from localllm.kernels.spec import ModelSpec

    from .parts.source import Source


def build(source: Source) -> ModelSpec:
    """All layers share the window that the file states; long contexts use longrope factors."""
    sizes = read_dimensions(source)
    rope = read_rope(source, sizes.rope_dimensions, interleaved=False)
    window = sliding_window(source)
    layers = []
    for index in range(sizes.layers):
        norm = source.norm(f"blk.{index}.attn_norm", sizes.hidden)
        attention = read_attention(source, index, sizes, rope, norm=norm, window=window)
        norm = source.norm(f"blk.{index}.ffn_norm", sizes.hidden)
        layers.append(Layer(attention, read_feed_forward(source, index, sizes.hidden, norm=norm)))
    return assemble(source, sizes, read_embed(source, sizes), layers, read_head(source, sizes))

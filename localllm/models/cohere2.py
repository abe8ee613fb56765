"""Command R7B and A: three of four layers slide and are rotated, the others see everything unrotated.

https://arxiv.org/abs/2504.00698
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from localllm.kernels.spec import Layer

from .parts.attention import read_attention, slides, sliding_window
from .parts.decoder import assemble, read_embed, read_head
from .parts.dimensions import read_dimensions
from .parts.feed_forward import read_feed_forward
from .parts.rope import read_rope

if TYPE_CHECKING:
    from localllm.kernels.spec import ModelSpec

    from .parts.source import Source


def build(source: Source) -> ModelSpec:
    """Both blocks read one layer norm without bias; logits are scaled."""
    sizes = read_dimensions(source)
    rope = read_rope(source, sizes.rope_dimensions, interleaved=True)
    window = sliding_window(source)
    layers = []
    for index in range(sizes.layers):
        local = slides(source, index, period=4)
        norm = source.norm(f"blk.{index}.attn_norm", sizes.hidden, layer_norm=True)
        attention = read_attention(
            source, index, sizes, rope if local else None, norm=norm, window=window if local else None
        )
        block = read_feed_forward(source, index, sizes.hidden, norm=norm)
        layers.append(Layer(attention, block, parallel=True))
    head = read_head(source, sizes, layer_norm=True, scale=source.optional_floating("logit_scale") or 1.0)
    return assemble(source, sizes, read_embed(source, sizes), layers, head)

"""Models whose norms come after the blocks instead of before them (OLMo 2 and 3, EXAONE 4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from localllm.kernels.spec import Layer

from .attention import read_attention, slides, sliding_window
from .decoder import assemble, read_embed, read_head
from .feed_forward import read_feed_forward

if TYPE_CHECKING:
    from localllm.kernels.spec import ModelSpec, Rope

    from .attention import HeadNorms
    from .dimensions import Dimensions
    from .source import Source


def build_post_normed(
    source: Source, sizes: Dimensions, *, rope: Rope | None, local_rope: Rope | None, head_norms: HeadNorms
) -> ModelSpec:
    """With a window three of four layers slide, rotated by `local_rope`; all others are rotated by `rope`."""
    window = sliding_window(source)
    layers = []
    for index in range(sizes.layers):
        local = window is not None and slides(source, index, period=4)
        attention = read_attention(
            source,
            index,
            sizes,
            local_rope if local else rope,
            norm=None,
            window=window if local else None,
            head_norms=head_norms,
            post_norm="post_attention_norm",
        )
        block = read_feed_forward(source, index, sizes.hidden, norm=None, post_norm="post_ffw_norm")
        layers.append(Layer(attention, block))
    return assemble(source, sizes, read_embed(source, sizes), layers, read_head(source, sizes))

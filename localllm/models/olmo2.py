"""OLMo 2 and 3: norms after the blocks instead of before, queries and keys normalised over all heads.

https://arxiv.org/abs/2501.00656
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
    """A file with a window is OLMo 3: three of four layers slide, and those rotate without the context scaling."""
    sizes = read_dimensions(source)
    window = sliding_window(source)
    scaled = read_rope(source, sizes.rope_dimensions, interleaved=False)
    unscaled = read_rope(source, sizes.rope_dimensions, interleaved=False, scaled=False)
    layers = []
    for index in range(sizes.layers):
        local = window is not None and slides(source, index, period=4)
        attention = read_attention(
            source,
            index,
            sizes,
            unscaled if local else scaled,
            norm=None,
            window=window if local else None,
            head_norms="all",
            post_norm="post_attention_norm",
        )
        block = read_feed_forward(source, index, sizes.hidden, norm=None, post_norm="post_ffw_norm")
        layers.append(Layer(attention, block))
    return assemble(source, sizes, read_embed(source, sizes), layers, read_head(source, sizes))

"""Gemma 3: five layers with a sliding window and a local rope base, then one global layer.

https://arxiv.org/abs/2503.19786
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from localllm.kernels.spec import Activation, Layer

from .parts.attention import read_attention, slides, sliding_window
from .parts.decoder import assemble, read_embed, read_head
from .parts.dimensions import read_dimensions
from .parts.feed_forward import read_feed_forward
from .parts.rope import read_rope

if TYPE_CHECKING:
    from localllm.kernels.spec import ModelSpec

    from .parts.source import Source

_LAYERS_OF_27B = 62  # whose attention scale is that of hidden / heads, not of its head size


def build(source: Source) -> ModelSpec:
    """Embedding times sqrt(hidden), norms before and after each block, normalised queries and keys, tanh-GELU."""
    sizes = read_dimensions(source)
    scale = math.sqrt(sizes.heads / sizes.hidden) if sizes.layers == _LAYERS_OF_27B else None
    global_rope = read_rope(source, sizes.rope_dimensions, interleaved=False)
    local_base = source.floating("rope.freq_base_swa", 10000.0)
    local_rope = read_rope(source, sizes.rope_dimensions, interleaved=False, base=local_base, scaled=False)
    window = sliding_window(source)
    layers = []
    for index in range(sizes.layers):
        local = window is not None and slides(source, index, period=6)
        attention = read_attention(
            source,
            index,
            sizes,
            local_rope if local else global_rope,
            norm=source.norm(f"blk.{index}.attn_norm", sizes.hidden),
            scale=scale,
            window=window if local else None,
            softcap=source.optional_floating("attn_logit_softcapping"),
            head_norms="head",
            post_norm="post_attention_norm",
        )
        feed_forward = read_feed_forward(
            source,
            index,
            sizes.hidden,
            norm=source.norm(f"blk.{index}.ffn_norm", sizes.hidden),
            activation=Activation.GELU_TANH,
            post_norm="post_ffw_norm",
        )
        layers.append(Layer(attention, feed_forward))
    head = read_head(source, sizes, softcap=source.optional_floating("final_logit_softcapping"))
    return assemble(source, sizes, read_embed(source, sizes, scale=math.sqrt(sizes.hidden)), layers, head)

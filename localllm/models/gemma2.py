"""Gemma 2: every second layer slides, attention scores and logits are soft-capped. https://arxiv.org/abs/2408.00118"""

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

_LAYERS_OF_27B = 46  # whose attention scale is that of hidden / heads, not of its head size


def build(source: Source) -> ModelSpec:
    """Embedding times sqrt(hidden), norms before and after each block, tanh-GELU."""
    sizes = read_dimensions(source)
    scale = math.sqrt(sizes.heads / sizes.hidden) if sizes.layers == _LAYERS_OF_27B else None
    rope = read_rope(source, sizes.rope_dimensions, interleaved=False)
    window = sliding_window(source)
    softcap = source.optional_floating("attn_logit_softcapping")
    layers = []
    for index in range(sizes.layers):
        attention = read_attention(
            source,
            index,
            sizes,
            rope,
            norm=source.norm(f"blk.{index}.attn_norm", sizes.hidden),
            scale=scale,
            window=window if slides(source, index, period=2) else None,
            softcap=softcap,
            post_norm="post_attention_norm",
        )
        block = read_feed_forward(
            source,
            index,
            sizes.hidden,
            norm=source.norm(f"blk.{index}.ffn_norm", sizes.hidden),
            activation=Activation.GELU_TANH,
            post_norm="post_ffw_norm",
        )
        layers.append(Layer(attention, block))
    head = read_head(source, sizes, softcap=source.optional_floating("final_logit_softcapping"))
    return assemble(source, sizes, read_embed(source, sizes, scale=math.sqrt(sizes.hidden)), layers, head)

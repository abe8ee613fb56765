"""What Gemma 2 and 3 have in common: norms before and after each block, and windows in all but every n-th layer."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from localllm.kernels.spec import Activation, Layer

from .attention import read_attention, slides, sliding_window
from .decoder import assemble, read_embed, read_head
from .feed_forward import read_feed_forward

if TYPE_CHECKING:
    from localllm.kernels.spec import ModelSpec, Rope

    from .attention import HeadNorms
    from .dimensions import Dimensions
    from .source import Source


def build_gemma(
    source: Source,
    sizes: Dimensions,
    *,
    period: int,
    rope: Rope | None,
    local_rope: Rope | None,
    layers_of_27b: int,
    head_norms: HeadNorms | None = None,
) -> ModelSpec:
    """Embedding times sqrt(hidden), tanh-GELU, optional soft caps; every `period`-th layer sees everything.

    A layer that slides is turned by `local_rope`, the others by `rope`. In the model of `layers_of_27b` layers the
    scale of attention is that of hidden / heads, not of the head size.
    """
    scale = math.sqrt(sizes.heads / sizes.hidden) if sizes.layers == layers_of_27b else None
    window = sliding_window(source)
    softcap = source.optional_floating("attn_logit_softcapping")
    layers = []
    for index in range(sizes.layers):
        local = window is not None and slides(source, index, period)
        attention = read_attention(
            source,
            index,
            sizes,
            local_rope if local else rope,
            norm=source.norm(f"blk.{index}.attn_norm", sizes.hidden),
            scale=scale,
            window=window if local else None,
            softcap=softcap,
            head_norms=head_norms,
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

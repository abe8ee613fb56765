"""gpt-oss: attention sinks, biases everywhere, every second layer slides, clamped swiglu experts.

https://arxiv.org/abs/2508.10925
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from localllm.kernels.spec import Activation, Gating, Layer

from .parts.attention import read_attention, slides, sliding_window
from .parts.decoder import assemble, read_embed, read_head
from .parts.dimensions import read_dimensions
from .parts.experts import read_experts
from .parts.rope import read_rope

if TYPE_CHECKING:
    from localllm.kernels.spec import ModelSpec

    from .parts.source import Source


def build(source: Source) -> ModelSpec:
    """The tensor `post_attention_norm` is the norm before the experts."""
    sizes = read_dimensions(source)
    rope = read_rope(source, sizes.rope_dimensions, interleaved=False)
    window = sliding_window(source)
    layers = []
    for index in range(sizes.layers):
        attention = read_attention(
            source,
            index,
            sizes,
            rope,
            norm=source.norm(f"blk.{index}.attn_norm", sizes.hidden),
            window=window if slides(source, index, period=2) else None,
            sinks=True,
        )
        experts = read_experts(
            source,
            index,
            sizes.hidden,
            norm=source.norm(f"blk.{index}.post_attention_norm", sizes.hidden),
            activation=Activation.SWIGLU_CLAMPED,
            gating=Gating.SOFTMAX_CHOSEN,
            normalise=False,
        )
        layers.append(Layer(attention, experts))
    return assemble(source, sizes, read_embed(source, sizes), layers, read_head(source, sizes))

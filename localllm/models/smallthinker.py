"""SmallThinker: ReLU-gated experts, chosen before attention from the layer's input. https://arxiv.org/abs/2507.20984"""

from __future__ import annotations

from typing import TYPE_CHECKING

from localllm.kernels.spec import Activation, Layer

from .parts.attention import read_attention, sliding_window
from .parts.decoder import assemble, read_embed, read_head
from .parts.dimensions import read_dimensions
from .parts.experts import read_experts
from .parts.rope import read_rope

if TYPE_CHECKING:
    from localllm.kernels.spec import ModelSpec

    from .parts.source import Source

_PERIOD = (
    4  # with a window, layers 0, 4, 8... see everything and are not rotated (a model of just 4 layers rotates all)
)


def build(source: Source) -> ModelSpec:
    """A file with a window alternates; one without rotates every layer and sees everything."""
    source.ignore("lm_head_profiler.weight")
    sizes = read_dimensions(source)
    rope = read_rope(source, sizes.rope_dimensions, interleaved=False)
    window = sliding_window(source)
    layers = []
    for index in range(sizes.layers):
        full = window is not None and index % _PERIOD == 0
        attention = read_attention(
            source,
            index,
            sizes,
            None if full and sizes.layers != _PERIOD else rope,
            norm=source.norm(f"blk.{index}.attn_norm", sizes.hidden),
            window=None if full else window,
        )
        experts = read_experts(
            source,
            index,
            sizes.hidden,
            norm=source.norm(f"blk.{index}.ffn_norm", sizes.hidden),
            activation=Activation.RELU,
            normalise=True,
            router_reads_layer_input=True,
        )
        layers.append(Layer(attention, experts))
    return assemble(source, sizes, read_embed(source, sizes), layers, read_head(source, sizes))

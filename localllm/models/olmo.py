"""OLMo 1: layer norms without gain or bias. https://arxiv.org/abs/2402.00838"""

from __future__ import annotations

from typing import TYPE_CHECKING

from localllm.kernels.spec import Layer, Norm

from .parts.attention import read_attention
from .parts.decoder import assemble, read_embed, read_output
from .parts.dimensions import read_dimensions
from .parts.feed_forward import read_feed_forward
from .parts.rope import read_rope

if TYPE_CHECKING:
    from localllm.kernels.spec import ModelSpec

    from .parts.source import Source


def build(source: Source) -> ModelSpec:
    """Files that clamp queries, keys and values are refused."""
    source.refuse("attention.clamp_kqv", "clamping queries, keys and values")
    sizes = read_dimensions(source)
    rope = read_rope(source, sizes.rope_dimensions, interleaved=True)
    norm = Norm(None, source.floating("attention.layer_norm_epsilon"), subtract_mean=True)
    layers = []
    for index in range(sizes.layers):
        attention = read_attention(source, index, sizes, rope, norm=norm)
        layers.append(Layer(attention, read_feed_forward(source, index, sizes.hidden, norm=norm)))
    return assemble(source, sizes, read_embed(source, sizes), layers, read_output(source, sizes, norm))

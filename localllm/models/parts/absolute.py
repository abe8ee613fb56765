"""Decoders with learned absolute positions: GPT-2, StarCoder 1, OPT."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from localllm.gguf_io import GGUFError
from localllm.kernels.spec import Activation, Layer

from .attention import read_attention
from .decoder import assemble, read_embed, read_head
from .dimensions import read_dimensions
from .feed_forward import read_feed_forward

if TYPE_CHECKING:
    from localllm.kernels.spec import ModelSpec

    from .source import Source


def build_absolute(source: Source, *, activation: Activation, position_offset: int = 0) -> ModelSpec:
    """Layer norms, biases everywhere, no rope, no gate; position p has row p + `position_offset` of the table."""
    sizes = read_dimensions(source)
    shape = source.shape_of("position_embd.weight") or (sizes.context + position_offset, sizes.hidden)
    positions = source.tensor("position_embd.weight", (shape[0], sizes.hidden))
    if shape[0] < sizes.context + position_offset:
        raise GGUFError(
            f"tensor position_embd.weight: {shape[0]} rows, expected at least {sizes.context + position_offset} "
            f"from {source.key('context_length')}"
        )
    layers = []
    for index in range(sizes.layers):
        norm = source.norm(f"blk.{index}.attn_norm", sizes.hidden, layer_norm=True)
        attention = read_attention(source, index, sizes, None, norm=norm)
        norm = source.norm(f"blk.{index}.ffn_norm", sizes.hidden, layer_norm=True)
        block = read_feed_forward(source, index, sizes.hidden, norm=norm, activation=activation, gated=False)
        layers.append(Layer(attention, block))
    embed = replace(read_embed(source, sizes), positions=positions, position_offset=position_offset)
    return assemble(source, sizes, embed, layers, read_head(source, sizes, layer_norm=True))

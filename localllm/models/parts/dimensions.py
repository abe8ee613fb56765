"""The numbers that every decoder has, read and checked once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from localllm.gguf_io import GGUFError

if TYPE_CHECKING:
    from .source import Source


@dataclass(frozen=True, slots=True)
class Dimensions:
    """Sizes of a model; `rope_dimensions` is how many values of a head are rotated."""

    vocabulary: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    rope_dimensions: int
    context: int


def read_dimensions(source: Source, layer: int = 0) -> Dimensions:
    """The sizes that hold in `layer` (head counts may differ between layers)."""
    hidden = source.integer("embedding_length")
    heads = source.integer_of_layer("attention.head_count", layer, high=4096)
    kv_heads = source.integer_of_layer("attention.head_count_kv", layer, heads, high=4096)
    if heads % kv_heads:
        raise GGUFError(f"{source.key('attention.head_count')}: {heads} is no multiple of {kv_heads} key/value heads")
    if not source.has("attention.key_length") and hidden % heads:
        raise GGUFError(f"{source.key('embedding_length')}: {hidden} is no multiple of {heads} heads")
    key_dim = source.integer("attention.key_length", max(hidden // heads, 1), high=8192)
    value_dim = source.integer("attention.value_length", max(hidden // heads, 1), high=8192)
    rope_dimensions = source.integer("rope.dimension_count", key_dim, low=0, high=key_dim)
    if rope_dimensions % 2:
        raise GGUFError(f"{source.key('rope.dimension_count')}: {rope_dimensions} is odd")
    return Dimensions(
        vocabulary=_vocabulary(source, hidden),
        hidden=hidden,
        layers=_layers(source),
        heads=heads,
        kv_heads=kv_heads,
        key_dim=key_dim,
        value_dim=value_dim,
        rope_dimensions=rope_dimensions,
        context=source.integer("context_length", high=1 << 40),
    )


def _layers(source: Source) -> int:
    """Layers of the decoder: the file also counts those that only predict further tokens, which are left out if
    nobody asks for them."""
    count = source.integer("block_count", high=4096)
    ahead = source.integer("nextn_predict_layers", 0, low=0, high=count - 1)
    for layer in range(count - ahead, count):
        source.ignore_prefix(f"blk.{layer}.nextn." if source.ahead else f"blk.{layer}.")
    return count if source.ahead else count - ahead


def _vocabulary(source: Source, hidden: int) -> int:
    """Rows of the embedding table: the one number that the file cannot get wrong."""
    table = source.file.tensors.get("token_embd.weight")
    if table is None:
        raise GGUFError(f"tensor token_embd.weight is missing; it should have {hidden} columns")
    if len(table.shape) != 2 or table.shape[1] != hidden:
        raise GGUFError(f"tensor token_embd.weight: shape {table.shape}, expected (vocabulary, {hidden})")
    return table.shape[0]

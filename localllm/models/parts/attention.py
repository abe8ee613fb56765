"""The attention block of a layer, from separate or fused tensors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, TypeAlias

from localllm.gguf_io import GGUFError
from localllm.kernels.spec import Attention, Linear, Norm

if TYPE_CHECKING:
    from localllm.kernels.spec import Rope

    from .dimensions import Dimensions
    from .source import Source


HeadNorms: TypeAlias = Literal["head", "all", "each"]
"""Queries and keys are normalised over each head, over all heads together, or over each head with gains of its own."""


def read_attention(
    source: Source,
    layer: int,
    sizes: Dimensions,
    rope: Rope | None,
    *,
    norm: Norm | None,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: bool = False,
    head_norms: HeadNorms | None = None,
    norm_after_rope: bool = False,
    layer_norm: bool = False,
    post_norm: str | None = None,
) -> Attention:
    """Grouped-query attention of `layer`.

    `head_norms` are layer norms with `layer_norm`, else RMS norms. `post_norm` names the norm of the block's output.
    `scale` None means 1 / sqrt(key_dim).
    """
    prefix = f"blk.{layer}"
    query, key, value = read_qkv(source, layer, sizes)
    return Attention(
        norm=norm,
        query=query,
        key=key,
        value=value,
        output=source.linear(f"{prefix}.attn_output", sizes.hidden, sizes.heads * sizes.value_dim),
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        key_dim=sizes.key_dim,
        value_dim=sizes.value_dim,
        scale=1 / math.sqrt(sizes.key_dim) if scale is None else scale,
        rope=rope,
        query_norm=_head_norm(source, f"{prefix}.attn_q_norm", sizes.heads, sizes.key_dim, head_norms, layer_norm),
        key_norm=_head_norm(source, f"{prefix}.attn_k_norm", sizes.kv_heads, sizes.key_dim, head_norms, layer_norm),
        window=window,
        softcap=softcap,
        sinks=source.vector(f"{prefix}.attn_sinks.weight", sizes.heads) if sinks else None,
        post_norm=source.norm(f"{prefix}.{post_norm}", sizes.hidden) if post_norm else None,
        norm_after_rope=norm_after_rope,
    )


def _head_norm(
    source: Source, name: str, heads: int, key_dim: int, kind: HeadNorms | None, layer_norm: bool
) -> Norm | None:
    if kind is None:
        return None
    shape = {"head": (key_dim,), "all": (heads * key_dim,), "each": (heads, key_dim)}[kind]
    return source.norm(name, *shape, layer_norm=layer_norm)


def read_qkv(source: Source, layer: int, sizes: Dimensions) -> tuple[Linear, Linear, Linear]:
    """Query, key and value projections: three tensors, or row slices of `attn_qkv` in this order."""
    prefix = f"blk.{layer}"
    queries = sizes.heads * sizes.key_dim
    keys = sizes.kv_heads * sizes.key_dim
    values = sizes.kv_heads * sizes.value_dim
    if not source.has_tensor(f"{prefix}.attn_qkv.weight"):
        return (
            source.linear(f"{prefix}.attn_q", queries, sizes.hidden),
            source.linear(f"{prefix}.attn_k", keys, sizes.hidden),
            source.linear(f"{prefix}.attn_v", values, sizes.hidden),
        )
    fused = source.linear(f"{prefix}.attn_qkv", queries + keys + values, sizes.hidden)
    return (
        slice_linear(fused, 0, queries),
        slice_linear(fused, queries, queries + keys),
        slice_linear(fused, queries + keys, queries + keys + values),
    )


def slice_linear(linear: Linear, start: int, stop: int) -> Linear:
    """Outputs [start, stop) of a projection, as views."""
    bias = None if linear.bias is None else linear.bias.row_slice(start, stop)
    return Linear(linear.weight.row_slice(start, stop), bias)


def sliding_window(source: Source) -> int | None:
    """The window that the file states for its sliding layers, or None."""
    if not source.has("attention.sliding_window"):
        return None
    return source.integer("attention.sliding_window", low=0, high=1 << 40) or None


def slides(source: Source, layer: int, period: int) -> bool:
    """Whether `layer` has a sliding window: all but every `period`-th, unless the file states its own pattern."""
    key = source.key("attention.sliding_window_pattern")
    metadata = source.file.metadata
    if key not in metadata:
        return (layer + 1) % period != 0
    if not metadata.is_array(key):
        return (layer + 1) % source.integer("attention.sliding_window_pattern") != 0
    pattern = metadata.booleans(key)
    if layer >= len(pattern):
        raise GGUFError(f"{key}: {len(pattern)} values, but there is a layer {layer}")
    return bool(pattern[layer])

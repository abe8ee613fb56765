"""Multi-head latent attention of a layer, from divided or undivided tensors. https://arxiv.org/abs/2405.04434"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from localllm.gguf_io import GGUFError, QuantType, Tensor, dequantize
from localllm.kernels.spec import LatentAttention

from .rope import read_rope, yarn_factor

if TYPE_CHECKING:
    from .dimensions import Dimensions
    from .source import Source


def read_latent_attention(
    source: Source, layer: int, sizes: Dimensions, *, interleaved: bool = True
) -> LatentAttention:
    """Attention of `layer`; yarn stretches the attention scale by its log multiplier instead of cos and sin."""
    prefix = f"blk.{layer}"
    rank = source.integer("attention.kv_lora_rank")
    key_dim = source.integer("attention.key_length_mla", sizes.key_dim, high=8192)
    value_dim = source.integer("attention.value_length_mla", sizes.value_dim, high=8192)
    rope = read_rope(source, sizes.rope_dimensions, interleaved=interleaved, yarn_magnitude=False)
    nope_dim = key_dim - sizes.rope_dimensions
    if rope is None or nope_dim <= 0:
        raise GGUFError(
            f"{source.key('rope.dimension_count')}: {sizes.rope_dimensions}, expected 2 to {key_dim - 1} of a head"
        )
    heads, width = sizes.heads, sizes.heads * key_dim
    query_rank = source.integer("attention.q_lora_rank", 0, low=0)
    stretch = 1 + source.floating("rope.scaling.yarn_log_multiplier", 0.0, positive=False) * math.log(
        yarn_factor(source)
    )
    key_up, value_up = _read_up(source, layer, heads, nope_dim, value_dim, rank)
    return LatentAttention(
        norm=source.norm(f"{prefix}.attn_norm", sizes.hidden),
        query=(
            source.linear(f"{prefix}.attn_q_a", query_rank, sizes.hidden),
            source.norm(f"{prefix}.attn_q_a_norm", query_rank),
            source.linear(f"{prefix}.attn_q_b", width, query_rank),
        )
        if query_rank
        else source.linear(f"{prefix}.attn_q", width, sizes.hidden),
        key_value_down=source.linear(f"{prefix}.attn_kv_a_mqa", rank + sizes.rope_dimensions, sizes.hidden),
        latent_norm=source.norm(f"{prefix}.attn_kv_a_norm", rank),
        key_up=key_up,
        value_up=value_up,
        output=source.linear(f"{prefix}.attn_output", sizes.hidden, heads * value_dim),
        heads=heads,
        latent_rank=rank,
        nope_dim=nope_dim,
        value_dim=value_dim,
        scale=stretch**2 / math.sqrt(key_dim),
        rope=rope,
    )


def _read_up(source: Source, layer: int, heads: int, nope_dim: int, value_dim: int, rank: int) -> tuple[Tensor, Tensor]:
    """key_up (heads, rank, nope_dim) and value_up (heads, value_dim, rank).

    Older files have both in one `attn_kv_b` (heads * (nope_dim + value_dim), rank): its key rows are dequantised and
    transposed once, here; its value rows stay as they are.
    """
    prefix = f"blk.{layer}"
    if not source.has_tensor(f"{prefix}.attn_kv_b.weight"):
        return (
            source.tensor(f"{prefix}.attn_k_b.weight", (heads, rank, nope_dim)),
            source.tensor(f"{prefix}.attn_v_b.weight", (heads, value_dim, rank)),
        )
    both = source.tensor(f"{prefix}.attn_kv_b.weight", (heads * (nope_dim + value_dim), rank))
    data = both.data.reshape(heads, nope_dim + value_dim, -1)
    value_up = replace(
        both, name=f"{both.name}[values]", shape=(heads, value_dim, rank), data=np.ascontiguousarray(data[:, nope_dim:])
    )
    keys = replace(both, shape=(heads, nope_dim, rank), data=np.ascontiguousarray(data[:, :nope_dim]))
    transposed = np.ascontiguousarray(dequantize(keys).astype(np.float32).transpose(0, 2, 1))
    shape = (heads, rank, nope_dim)
    key_up = Tensor(f"{both.name}[keys]", QuantType.F32, shape, transposed.view(np.uint8).reshape(heads, rank, -1))
    return key_up, value_up

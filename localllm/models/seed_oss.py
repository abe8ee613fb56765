"""Seed-OSS: as Qwen2; the tensor `post_attention_norm` is the norm before the second block."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .parts.plain import build_plain

if TYPE_CHECKING:
    from localllm.kernels.spec import ModelSpec

    from .parts.source import Source


def build(source: Source) -> ModelSpec:
    """Biases on query, key and value."""
    return build_plain(source, interleaved=False, block_norm="post_attention_norm")

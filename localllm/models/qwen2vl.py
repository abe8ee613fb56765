"""Qwen2-VL and Qwen2.5-VL on text alone. https://arxiv.org/abs/2409.12191"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .parts.plain import build_plain

if TYPE_CHECKING:
    from localllm.kernels.spec import ModelSpec

    from .parts.source import Source


def build(source: Source) -> ModelSpec:
    """As Qwen2: for text the three rotary position axes hold the same number."""
    return build_plain(source, interleaved=False)

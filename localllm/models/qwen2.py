"""Qwen2 and Qwen2.5: biases on query, key and value, rope over half-split pairs. https://arxiv.org/abs/2407.10671"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .parts.plain import build_plain

if TYPE_CHECKING:
    from localllm.kernels.spec import ModelSpec

    from .parts.source import Source


def build(source: Source) -> ModelSpec:
    """The biases are read where the file has them."""
    return build_plain(source, interleaved=False)

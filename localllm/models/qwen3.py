"""Qwen3: queries and keys are normalised over each head. https://arxiv.org/abs/2505.09388"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .parts.plain import build_plain

if TYPE_CHECKING:
    from localllm.kernels.spec import ModelSpec

    from .parts.source import Source


def build(source: Source) -> ModelSpec:
    """The head size is independent of hidden / heads."""
    return build_plain(source, interleaved=False, head_norms="head")

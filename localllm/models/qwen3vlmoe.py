"""Qwen3-VL with experts on text alone. https://arxiv.org/abs/2511.21631"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .parts.experts import read_experts
from .parts.plain import build_plain

if TYPE_CHECKING:
    from localllm.kernels.spec import MixtureOfExperts, ModelSpec, Norm

    from .parts.source import Source


def build(source: Source) -> ModelSpec:
    """As Qwen3 with experts: for text the three rotary position axes hold the same number."""
    return build_plain(source, interleaved=False, head_norms="head", second_block=_block)


def _block(source: Source, index: int, hidden: int, norm: Norm) -> MixtureOfExperts:
    return read_experts(source, index, hidden, norm=norm, normalise=True)

"""OLMoE: experts without renormalised weights, queries and keys normalised over all heads. https://arxiv.org/abs/2409.02060"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .parts.experts import read_experts
from .parts.plain import build_plain

if TYPE_CHECKING:
    from localllm.kernels.spec import MixtureOfExperts, ModelSpec, Norm

    from .parts.source import Source


def build(source: Source) -> ModelSpec:
    """Every layer has experts."""
    return build_plain(source, interleaved=False, head_norms="all", second_block=_block)


def _block(source: Source, index: int, hidden: int, norm: Norm) -> MixtureOfExperts:
    return read_experts(source, index, hidden, norm=norm, normalise=False)

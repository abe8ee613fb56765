"""Hunyuan with experts and a shared expert. https://arxiv.org/abs/2411.02265"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .parts.experts import read_experts
from .parts.feed_forward import read_feed_forward
from .parts.plain import build_plain

if TYPE_CHECKING:
    from localllm.kernels.spec import MixtureOfExperts, ModelSpec, Norm

    from .parts.source import Source


def build(source: Source) -> ModelSpec:
    """Queries and keys are normalised after rope."""
    return build_plain(source, interleaved=False, head_norms="head", norm_after_rope=True, second_block=_block)


def _block(source: Source, index: int, hidden: int, norm: Norm) -> MixtureOfExperts:
    neurons = source.integer("expert_shared_feed_forward_length")
    shared = read_feed_forward(source, index, hidden, norm=None, neurons=neurons, suffix="_shexp")
    return read_experts(source, index, hidden, norm=norm, normalise=True, shared=shared)

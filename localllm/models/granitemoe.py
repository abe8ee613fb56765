"""Granite 3 with experts: the scales of Granite, an optional shared expert. https://arxiv.org/abs/2408.13359"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import granite
from .parts.experts import read_experts
from .parts.feed_forward import read_feed_forward

if TYPE_CHECKING:
    from localllm.kernels.spec import MixtureOfExperts, ModelSpec, Norm

    from .parts.source import Source


def build(source: Source) -> ModelSpec:
    """Every layer has experts, whose weights sum to one."""
    return granite.build(source, _block)


def _block(source: Source, index: int, hidden: int, norm: Norm) -> MixtureOfExperts:
    neurons, shared = source.integer("expert_shared_feed_forward_length", 0, low=0), None
    if neurons:
        shared = read_feed_forward(source, index, hidden, norm=None, neurons=neurons, suffix="_shexp")
    return read_experts(source, index, hidden, norm=norm, normalise=True, shared=shared)

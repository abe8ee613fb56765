"""Qwen2 with experts and a gated shared expert. https://arxiv.org/abs/2407.10671"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .parts.experts import read_experts, read_shared_gate
from .parts.feed_forward import read_feed_forward
from .parts.plain import build_plain

if TYPE_CHECKING:
    from localllm.kernels.spec import MixtureOfExperts, ModelSpec, Norm

    from .parts.source import Source


def build(source: Source) -> ModelSpec:
    """Attention as in Qwen2, every layer with experts whose weights are not renormalised."""
    return build_plain(source, interleaved=False, second_block=_block)


def _block(source: Source, index: int, hidden: int, norm: Norm) -> MixtureOfExperts:
    neurons = source.integer("expert_shared_feed_forward_length", source.integer("feed_forward_length"))
    shared = read_feed_forward(source, index, hidden, norm=None, neurons=neurons, suffix="_shexp")
    gate = read_shared_gate(source, index, hidden)
    return read_experts(source, index, hidden, norm=norm, normalise=False, shared=shared, shared_gate=gate)

"""Llama 1 to 3, Mistral, Mixtral and the many models of the same shape (SmolLM, Yi, TinyLlama, Hermes...).

https://arxiv.org/abs/2302.13971, experts as in Mixtral: https://arxiv.org/abs/2401.04088
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .parts.experts import read_experts
from .parts.feed_forward import read_feed_forward
from .parts.plain import build_plain

if TYPE_CHECKING:
    from localllm.kernels.spec import FeedForward, MixtureOfExperts, ModelSpec, Norm

    from .parts.source import Source


def build(source: Source) -> ModelSpec:
    """RMS norms, rope over interleaved pairs, optional biases everywhere, gated feed-forward or experts."""
    return build_plain(source, interleaved=True, second_block=_block)


def _block(source: Source, index: int, hidden: int, norm: Norm) -> FeedForward | MixtureOfExperts:
    if source.integer("expert_count", 0, low=0):
        return read_experts(source, index, hidden, norm=norm, normalise=True)
    return read_feed_forward(source, index, hidden, norm=norm)

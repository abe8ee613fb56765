"""Qwen 1: query, key and value fused with biases. https://arxiv.org/abs/2309.16609"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .parts.feed_forward import read_feed_forward
from .parts.plain import build_plain

if TYPE_CHECKING:
    from localllm.kernels.spec import FeedForward, ModelSpec, Norm

    from .parts.source import Source


def build(source: Source) -> ModelSpec:
    """The file states twice the feed-forward length, as the original configuration does."""
    return build_plain(source, interleaved=False, second_block=_block)


def _block(source: Source, index: int, hidden: int, norm: Norm) -> FeedForward:
    return read_feed_forward(
        source, index, hidden, norm=norm, neurons=source.integer("feed_forward_length", low=2) // 2
    )

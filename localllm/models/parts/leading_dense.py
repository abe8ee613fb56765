"""The second block of models whose first layers are dense and whose others have experts and a shared one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from localllm.kernels.spec import Gating

from .experts import read_experts
from .feed_forward import read_feed_forward

if TYPE_CHECKING:
    from localllm.kernels.spec import FeedForward, MixtureOfExperts, Norm

    from .source import Source


def read_dense_or_experts(
    source: Source,
    index: int,
    hidden: int,
    norm: Norm,
    *,
    normalise: bool = False,
    gating: Gating = Gating.SOFTMAX,
    period: int = 1,
) -> FeedForward | MixtureOfExperts:
    """Dense in the first `leading_dense_block_count` layers; after them every `period`-th layer has experts.

    The `expert_shared_count` shared experts are one expert, as wide as the file's tensor: stated, or all together.
    """
    if index < source.integer("leading_dense_block_count", 0, low=0) or (index + 1) % period:
        return read_feed_forward(source, index, hidden, norm=norm)
    neurons, shared = source.integer("expert_feed_forward_length"), None
    if count := source.integer("expert_shared_count", 0, low=0, high=4096):
        width = source.integer("expert_shared_feed_forward_length", neurons * count)
        shared = read_feed_forward(source, index, hidden, norm=None, neurons=width, suffix="_shexp")
    return read_experts(
        source, index, hidden, norm=norm, gating=gating, normalise=normalise, neurons=neurons, shared=shared
    )

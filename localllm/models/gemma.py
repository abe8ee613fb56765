"""Gemma 1: embedding times sqrt(hidden), tanh-GELU. https://arxiv.org/abs/2403.08295"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from localllm.kernels.spec import Activation

from .parts.plain import build_plain

if TYPE_CHECKING:
    from localllm.kernels.spec import ModelSpec

    from .parts.source import Source


def build(source: Source) -> ModelSpec:
    """The head size is independent of hidden / heads."""
    return build_plain(
        source,
        interleaved=False,
        activation=Activation.GELU_TANH,
        embed_scale=math.sqrt(source.integer("embedding_length")),
    )

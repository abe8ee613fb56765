"""MiniCPM 1 and 2: as Llama, with scales on embedding, residual and logits. https://arxiv.org/abs/2404.06395"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .parts.plain import build_plain

if TYPE_CHECKING:
    from localllm.kernels.spec import ModelSpec

    from .parts.source import Source


def build(source: Source) -> ModelSpec:
    """Files from before the scales were stored have those of the published models."""
    hidden, layers = source.integer("embedding_length"), source.integer("block_count")
    return build_plain(
        source,
        interleaved=True,
        embed_scale=source.optional_floating("embedding_scale") or 12.0,
        residual_scale=source.optional_floating("residual_scale") or 1.4 / math.sqrt(layers),
        head_scale=1 / (source.optional_floating("logit_scale") or hidden / 256),
    )

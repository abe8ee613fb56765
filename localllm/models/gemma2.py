"""Gemma 2: every second layer slides, attention scores and logits are soft-capped. https://arxiv.org/abs/2408.00118"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .parts.dimensions import read_dimensions
from .parts.gemma import build_gemma
from .parts.rope import read_rope

if TYPE_CHECKING:
    from localllm.kernels.spec import ModelSpec

    from .parts.source import Source


def build(source: Source) -> ModelSpec:
    """One rope for all layers."""
    sizes = read_dimensions(source)
    rope = read_rope(source, sizes.rope_dimensions, interleaved=False)
    return build_gemma(source, sizes, period=2, rope=rope, local_rope=rope, layers_of_27b=46)

"""Gemma 3: five layers with a sliding window and a local rope base, then one global layer.

https://arxiv.org/abs/2503.19786
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .parts.dimensions import read_dimensions
from .parts.gemma import build_gemma
from .parts.rope import read_rope

if TYPE_CHECKING:
    from localllm.kernels.spec import ModelSpec

    from .parts.source import Source


def build(source: Source) -> ModelSpec:
    """Queries and keys are normalised over each head."""
    sizes = read_dimensions(source)
    rope = read_rope(source, sizes.rope_dimensions, interleaved=False)
    base = source.floating("rope.freq_base_swa", 10000.0)
    local = read_rope(source, sizes.rope_dimensions, interleaved=False, base=base, scaled=False)
    return build_gemma(source, sizes, period=6, rope=rope, local_rope=local, layers_of_27b=62, head_norms="head")

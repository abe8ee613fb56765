"""EXAONE 4: norms after the blocks, normalised queries and keys. https://arxiv.org/abs/2507.11407"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .parts.attention import sliding_window
from .parts.dimensions import read_dimensions
from .parts.post_normed import build_post_normed
from .parts.rope import read_rope

if TYPE_CHECKING:
    from localllm.kernels.spec import ModelSpec

    from .parts.source import Source


def build(source: Source) -> ModelSpec:
    """With a window (32B) three of four layers slide, and the others are not rotated; without one all are rotated."""
    sizes = read_dimensions(source)
    rope = read_rope(source, sizes.rope_dimensions, interleaved=False)
    others = rope if sliding_window(source) is None else None
    return build_post_normed(source, sizes, rope=others, local_rope=rope, head_norms="head")

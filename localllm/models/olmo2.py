"""OLMo 2 and 3: norms after the blocks instead of before, queries and keys normalised over all heads.

https://arxiv.org/abs/2501.00656
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .parts.dimensions import read_dimensions
from .parts.post_normed import build_post_normed
from .parts.rope import read_rope

if TYPE_CHECKING:
    from localllm.kernels.spec import ModelSpec

    from .parts.source import Source


def build(source: Source) -> ModelSpec:
    """A file with a window is OLMo 3: three of four layers slide, and those rotate without the context scaling."""
    sizes = read_dimensions(source)
    scaled = read_rope(source, sizes.rope_dimensions, interleaved=False)
    unscaled = read_rope(source, sizes.rope_dimensions, interleaved=False, scaled=False)
    return build_post_normed(source, sizes, rope=scaled, local_rope=unscaled, head_norms="all")

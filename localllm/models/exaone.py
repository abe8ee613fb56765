"""EXAONE 3 and 3.5. https://arxiv.org/abs/2408.03541"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .parts.plain import build_plain

if TYPE_CHECKING:
    from localllm.kernels.spec import ModelSpec

    from .parts.source import Source


def build(source: Source) -> ModelSpec:
    """As Llama, with rope over half-split pairs."""
    return build_plain(source, interleaved=False)

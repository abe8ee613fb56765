"""Hunyuan, dense: queries and keys are normalised after rope. https://github.com/Tencent-Hunyuan"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .parts.plain import build_plain

if TYPE_CHECKING:
    from localllm.kernels.spec import ModelSpec

    from .parts.source import Source


def build(source: Source) -> ModelSpec:
    """Rope over half-split pairs."""
    return build_plain(source, interleaved=False, head_norms="head", norm_after_rope=True)

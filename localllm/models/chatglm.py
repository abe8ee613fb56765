"""ChatGLM 3, GLM-4-9B and GLM-Edge: a part of each head is rotated, gate and up fused. https://arxiv.org/abs/2406.12793"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .parts.plain import build_plain

if TYPE_CHECKING:
    from localllm.kernels.spec import ModelSpec

    from .parts.source import Source


def build(source: Source) -> ModelSpec:
    """Query, key and value are fused in older files."""
    return build_plain(source, interleaved=True)

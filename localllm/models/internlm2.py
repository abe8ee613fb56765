"""InternLM2 and 2.5. https://arxiv.org/abs/2403.17297"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .parts.plain import build_plain

if TYPE_CHECKING:
    from localllm.kernels.spec import ModelSpec

    from .parts.source import Source


def build(source: Source) -> ModelSpec:
    """As Llama."""
    return build_plain(source, interleaved=True)

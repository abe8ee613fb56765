"""DeepSeek V1 with experts: the first layer dense, then experts with shared ones. https://arxiv.org/abs/2401.06066"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .parts.leading_dense import read_dense_or_experts
from .parts.plain import build_plain

if TYPE_CHECKING:
    from localllm.kernels.spec import ModelSpec

    from .parts.source import Source


def build(source: Source) -> ModelSpec:
    """Attention as in Llama."""
    return build_plain(source, interleaved=True, second_block=read_dense_or_experts)

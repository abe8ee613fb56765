"""StarCoder and SantaCoder: as GPT-2, with one head of keys and values. https://arxiv.org/abs/2305.06161"""

from __future__ import annotations

from typing import TYPE_CHECKING

from localllm.kernels.spec import Activation

from .parts.absolute import build_absolute

if TYPE_CHECKING:
    from localllm.kernels.spec import ModelSpec

    from .parts.source import Source


def build(source: Source) -> ModelSpec:
    """Tanh-GELU."""
    return build_absolute(source, activation=Activation.GELU_TANH)

"""GPT-2: learned positions, query, key and value fused. https://openai.com/research/better-language-models"""

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

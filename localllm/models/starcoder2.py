"""StarCoder 2: layer norms and biases everywhere. https://arxiv.org/abs/2402.19173"""

from __future__ import annotations

from typing import TYPE_CHECKING

from localllm.kernels.spec import Activation

from .parts.plain import build_plain

if TYPE_CHECKING:
    from localllm.kernels.spec import ModelSpec

    from .parts.source import Source


def build(source: Source) -> ModelSpec:
    """A feed-forward block without a gate, tanh-GELU."""
    return build_plain(source, interleaved=False, layer_norm=True, gated=False, activation=Activation.GELU_TANH)

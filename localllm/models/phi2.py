"""Phi-1.5 and Phi-2: both blocks read one layer norm, a part of each head is rotated. https://arxiv.org/abs/2309.05463"""

from __future__ import annotations

from typing import TYPE_CHECKING

from localllm.kernels.spec import Activation

from .parts.plain import build_plain

if TYPE_CHECKING:
    from localllm.kernels.spec import ModelSpec

    from .parts.source import Source


def build(source: Source) -> ModelSpec:
    """Biases everywhere, on the output too."""
    return build_plain(
        source, interleaved=False, layer_norm=True, parallel=True, gated=False, activation=Activation.GELU_TANH
    )

"""Bamboo, in the files of PowerInfer: as Mistral, with ReLU on the gate and on the up projection.

https://arxiv.org/abs/2406.05955
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from localllm.kernels.spec import Activation

from .parts.plain import build_plain

if TYPE_CHECKING:
    from localllm.kernels.spec import ModelSpec

    from .parts.source import Source


def build(source: Source) -> ModelSpec:
    """A neuron is silent when either of its projections is negative."""
    return build_plain(source, interleaved=True, activation=Activation.RELU_BOTH)

"""Nemotron and Minitron: layer norms, squared ReLU without a gate. https://arxiv.org/abs/2402.16819"""

from __future__ import annotations

from typing import TYPE_CHECKING

from localllm.kernels.spec import Activation

from .parts.plain import build_plain

if TYPE_CHECKING:
    from localllm.kernels.spec import ModelSpec

    from .parts.source import Source


def build(source: Source) -> ModelSpec:
    """Half of each head is rotated."""
    return build_plain(source, interleaved=False, layer_norm=True, gated=False, activation=Activation.RELU_SQUARED)

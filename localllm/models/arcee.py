"""Arcee: a feed-forward block without a gate, its activation squared ReLU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from localllm.kernels.spec import Activation

from .parts.plain import build_plain

if TYPE_CHECKING:
    from localllm.kernels.spec import ModelSpec

    from .parts.source import Source


def build(source: Source) -> ModelSpec:
    """Otherwise as Llama."""
    return build_plain(source, interleaved=True, activation=Activation.RELU_SQUARED, gated=False)

"""OPT, as in the files of PowerInfer: learned positions, ReLU. https://arxiv.org/abs/2205.01068"""

from __future__ import annotations

from typing import TYPE_CHECKING

from localllm.kernels.spec import Activation

from .parts.absolute import build_absolute

if TYPE_CHECKING:
    from localllm.kernels.spec import ModelSpec

    from .parts.source import Source


def build(source: Source) -> ModelSpec:
    """Its position table starts with two unused rows."""
    return build_absolute(source, activation=Activation.RELU, position_offset=2)

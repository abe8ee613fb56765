"""GPT-NeoX and Pythia: layer norms, biases everywhere, a part of each head is rotated. https://arxiv.org/abs/2204.06745"""

from __future__ import annotations

from typing import TYPE_CHECKING

from localllm.kernels.spec import Activation

from .parts.plain import build_plain

if TYPE_CHECKING:
    from localllm.kernels.spec import ModelSpec

    from .parts.source import Source


def build(source: Source) -> ModelSpec:
    """Both blocks read the same x unless the file says otherwise; each has its own norm."""
    return build_plain(
        source,
        interleaved=False,
        layer_norm=True,
        parallel=source.boolean("use_parallel_residual", True),
        gated=False,
        activation=Activation.GELU,
    )

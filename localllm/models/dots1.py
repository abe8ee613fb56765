"""dots.llm1: normalised queries and keys, sigmoid router with a selection bias. https://arxiv.org/abs/2506.05767"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from localllm.kernels.spec import Gating

from .parts.leading_dense import read_dense_or_experts
from .parts.plain import build_plain

if TYPE_CHECKING:
    from localllm.kernels.spec import ModelSpec

    from .parts.source import Source


def build(source: Source) -> ModelSpec:
    """The first layers are dense, then experts with shared ones."""
    block = partial(read_dense_or_experts, gating=Gating.SIGMOID)
    return build_plain(source, interleaved=False, head_norms="head", second_block=block)

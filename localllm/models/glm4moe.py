"""GLM 4.5 and 4.6: experts with a sigmoid router, a part of each head is rotated. https://arxiv.org/abs/2508.06471"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from localllm.kernels.spec import Gating

from .parts.leading_dense import read_dense_or_experts
from .parts.plain import build_plain

if TYPE_CHECKING:
    from localllm.kernels.spec import ModelSpec

    from .parts.attention import HeadNorms
    from .parts.source import Source


def build(source: Source) -> ModelSpec:
    """The tensor `post_attention_norm` is the norm before the second block; layers that predict ahead are left out."""
    block = partial(read_dense_or_experts, gating=Gating.SIGMOID, normalise=True)
    head_norms: HeadNorms | None = "head" if source.has_tensor("blk.0.attn_q_norm.weight") else None
    return build_plain(
        source,
        interleaved=False,
        head_norms=head_norms,
        block_norm="post_attention_norm",
        second_block=block,
    )

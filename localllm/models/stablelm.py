"""StableLM 2 and 3B: layer norms, a part of each head is rotated. https://arxiv.org/abs/2402.17834"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .parts.plain import build_plain

if TYPE_CHECKING:
    from localllm.kernels.spec import ModelSpec

    from .parts.source import Source


def build(source: Source) -> ModelSpec:
    """The 12B has both blocks read one norm, and normalises each head of queries and keys with gains of its own."""
    return build_plain(
        source,
        interleaved=False,
        layer_norm=True,
        parallel=not source.has_tensor("blk.0.ffn_norm.weight"),
        head_norms="each" if source.has_tensor("blk.0.attn_q_norm.weight") else None,
    )

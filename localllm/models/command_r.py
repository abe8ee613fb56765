"""Command R and R+: both blocks read one layer norm without bias, logits are scaled. https://docs.cohere.com"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .parts.plain import build_plain

if TYPE_CHECKING:
    from localllm.kernels.spec import ModelSpec

    from .parts.source import Source


def build(source: Source) -> ModelSpec:
    """Command R+ normalises each head of queries and keys with gains of its own."""
    return build_plain(
        source,
        interleaved=True,
        layer_norm=True,
        parallel=True,
        head_norms="each" if source.has_tensor("blk.0.attn_q_norm.weight") else None,
        head_scale=source.optional_floating("logit_scale") or 1.0,
    )

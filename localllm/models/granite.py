"""Granite 3: as Llama, with scales on embedding, attention, residual and logits. https://arxiv.org/abs/2405.04324"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .parts.plain import BlockReader, build_plain

if TYPE_CHECKING:
    from localllm.kernels.spec import ModelSpec

    from .parts.source import Source


def build(source: Source, second_block: BlockReader | None = None) -> ModelSpec:
    """Logits are divided by the file's logit scale."""
    return build_plain(
        source,
        interleaved=True,
        second_block=second_block,
        attention_scale=source.optional_floating("attention.scale"),
        embed_scale=source.optional_floating("embedding_scale") or 1.0,
        residual_scale=source.optional_floating("residual_scale") or 1.0,
        head_scale=1 / (source.optional_floating("logit_scale") or 1.0),
    )

"""Ministral 3: as Llama with yarn. https://mistral.ai/news/mistral-3"""

from __future__ import annotations

from typing import TYPE_CHECKING

from localllm.errors import UnsupportedModelError

from .parts.plain import build_plain

if TYPE_CHECKING:
    from localllm.kernels.spec import ModelSpec

    from .parts.source import Source


def build(source: Source) -> ModelSpec:
    """Beyond the original context the model scales queries by position, which no executor can do: it is refused."""
    original = source.integer("rope.scaling.original_context_length", 0, low=0, high=1 << 40)
    if source.optional_floating("attention.temperature_scale") and original and (source.context or 0) > original:
        raise UnsupportedModelError(
            f"this model scales its attention beyond {original} tokens, which is not supported",
            hint=f"Use a context of at most {original} tokens.",
        )
    return build_plain(source, interleaved=True)

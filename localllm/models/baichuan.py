"""Baichuan 7B: as Llama. https://arxiv.org/abs/2309.10305"""

from __future__ import annotations

from typing import TYPE_CHECKING

from localllm.errors import UnsupportedModelError

from .parts.plain import build_plain

if TYPE_CHECKING:
    from localllm.kernels.spec import ModelSpec

    from .parts.source import Source

_LAYERS_OF_13B = 40


def build(source: Source) -> ModelSpec:
    """The 13B has no rope but biases by distance (ALiBi), which no executor can do."""
    if source.integer("block_count") == _LAYERS_OF_13B:
        raise UnsupportedModelError("Baichuan 13B needs ALiBi position biases, which are not supported")
    return build_plain(source, interleaved=True)

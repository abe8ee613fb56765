"""ERNIE 4.5 with experts: softmax router with a selection bias.

https://yiyan.baidu.com/blog/publication/ERNIE_Technical_Report.pdf
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from .parts.leading_dense import read_dense_or_experts
from .parts.plain import build_plain

if TYPE_CHECKING:
    from localllm.kernels.spec import ModelSpec

    from .parts.source import Source


def build(source: Source) -> ModelSpec:
    """After the dense layers, every `interleave_moe_layer_step`-th layer has experts."""
    period = source.integer("interleave_moe_layer_step", 1)
    block = partial(read_dense_or_experts, normalise=True, period=period)
    return build_plain(source, interleaved=True, second_block=block)

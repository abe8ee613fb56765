"""The card's half of a feed-forward block whose other half is on the CPU."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from localllm.kernels.errors import UnsupportedModelError
from localllm.kernels.hybrid.halves import SplitExperts

from .linear import GpuLinear
from .matrix import PackedMatrix

if TYPE_CHECKING:
    import torch

    from localllm.kernels.hybrid.halves import Split
    from localllm.kernels.spec import MixtureOfExperts

    from .model import GpuExperts, GpuFeedForward, GpuNorm, ModelBuilder


@dataclass(frozen=True, slots=True, eq=False)
class GpuHalf:
    """The neurons on the card; `hot` None: none. `gates`: those of all neurons, the hot ones first."""

    layer: int
    norm: GpuNorm | None
    hot: GpuFeedForward | None
    gates: GpuLinear | None
    post_norm: GpuNorm | None

    @property
    def hot_neurons(self) -> int:
        """How many neurons are on the card."""
        return 0 if self.hot is None else self.hot.up.rows


@dataclass(frozen=True, slots=True, eq=False)
class GpuExpertHalf:
    """The experts on the card; `hot` None: none. The router knows all; `table` int32: its numbers in `hot`, or -1."""

    layer: int
    block: MixtureOfExperts
    norm: GpuNorm | None
    router: GpuLinear
    selection_bias: torch.Tensor | None
    hot: GpuExperts | None
    table: torch.Tensor
    post_norm: GpuNorm | None


def build_half(builder: ModelBuilder, layer: int, split: Split) -> GpuHalf | GpuExpertHalf:
    """Ask for the weights of a half."""
    if split.block.down.weight.rows % 32:
        raise UnsupportedModelError(f"rows of {split.block.down.weight.rows} values cannot cross to the CPU")
    if isinstance(split, SplitExperts):
        return _experts(builder, layer, split)
    block, hot = split.block, split.hot
    norm, post_norm = builder.norm(block.norm), builder.norm(block.post_norm)
    if split.gate is None:
        made = None if hot is None else builder.feed_forward(hot)
        return GpuHalf(layer, norm, made, None, post_norm)
    if hot is None:
        biased = block.up.bias is not None  # as `ModelBuilder.feed_forward`: pieces of the other half are fused with it
        return GpuHalf(layer, norm, None, builder.linear(split.gate, biased=biased), post_norm)
    made = builder.feed_forward(replace(hot, gate=None))
    count = hot.up.weight.rows
    gates = builder.linear(split.gate, biased=made.up.bias is not None)
    up = made.up if gates.bias is None else builder.linear(hot.up, biased=True)
    first = GpuLinear((later_rows(gates.matrices[0], 0, count),), None if gates.bias is None else gates.bias[:count])
    return GpuHalf(layer, norm, replace(made, block=hot, gate=first, up=up), gates, post_norm)


def _experts(builder: ModelBuilder, layer: int, split: SplitExperts) -> GpuExpertHalf:
    block = split.block
    return GpuExpertHalf(
        layer,
        block,
        builder.norm(block.norm),
        builder.precise(block.router),
        builder.memory.vector(block.selection_bias),
        None if split.hot is None else builder.experts(split.hot),
        builder.memory.values(np.maximum(split.places, -1).astype(np.int32)),
        builder.norm(block.post_norm),
    )


def later_rows(matrix: PackedMatrix, start: int, count: int) -> PackedMatrix:
    """Rows of a matrix from `start` on, both multiples of 16, as a view."""
    shape = replace(matrix.shape, rows=count)
    parts = (matrix.quants, matrix.high, matrix.scales, matrix.supers)
    arrays = (
        part[words * start : words * (start + count)] for part, words in zip(parts, shape.words_a_row, strict=True)
    )
    return PackedMatrix(shape, *arrays)

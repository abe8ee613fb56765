"""The CPU's half of a block cut into pieces that are copied to the device one after the other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from localllm.gguf_io import QuantType, Tensor
from localllm.kernels.spec import FeedForward, Linear, MixtureOfExperts

from .halves import SplitExperts, half_of_experts, half_of_neurons
from .placement import group_size, unit_count

if TYPE_CHECKING:
    from collections.abc import Callable

    from .halves import Split


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """A run of the cold half's neurons or experts as a block of its own, without norms; `first` is its first one.

    The bias of down and a shared expert, where the cold half has them, are in the first piece.
    """

    block: FeedForward | MixtureOfExperts
    first: int


def cut(split: Split, most: int, size_of: Callable[[FeedForward | MixtureOfExperts], int]) -> list[Piece]:
    """The cold half in pieces of about equal size, of at most `most` bytes by `size_of`, or of a single unit."""
    cold = split.cold
    if cold is None:
        return []
    units = int((split.places < 0).sum()) if isinstance(split, SplitExperts) else unit_count(cold)
    count = min(units, -(-size_of(cold) // max(1, most)))
    made: list[Piece] = []
    for members in np.array_split(np.arange(units), count):
        if isinstance(split, SplitExperts):
            experts = half_of_experts(split.cold, members)  # type: ignore[arg-type]
            assert experts is not None
            if made:
                experts = replace(experts, shared=None, shared_gate=None)
            made.append(Piece(replace(experts, norm=None, post_norm=None), int(members[0])))
            continue
        assert isinstance(cold, FeedForward)
        group = group_size(cold)
        part = half_of_neurons(cold, members, group)
        assert part is not None
        down = Linear(part.down.weight, None) if made else part.down
        gate, up = part.gate, part.up
        if split.gate is not None:  # gates are on the device; their bias wants one of up beside it
            gate = None
            if split.gate.bias is not None and up.bias is None:
                up = Linear(up.weight, _zeros(up.weight.rows))
        block = replace(part, gate=gate, up=up, down=down, norm=None, post_norm=None)
        made.append(Piece(block, int(members[0]) * group))
    return made


def _zeros(count: int) -> Tensor:
    return Tensor("no bias", QuantType.F32, (count,), np.zeros(4 * count, np.uint8))

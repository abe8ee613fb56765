"""What an executor will allocate on a card, from sizes alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from .expert_moves import landing_words
from .model import ModelBuilder
from .streaming import StreamPlan
from .weight_memory import WeightMemory
from .workspace import make_workspace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from localllm.kernels.hybrid.halves import Split
    from localllm.kernels.spec import ModelSpec

    from .device import Gpu
    from .vector_products import VectorProducts


@dataclass(frozen=True, slots=True)
class PlannedMemory:
    """Bytes on the card before anything is allocated."""

    weights: int
    workspace: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.weights + self.workspace


def plan_memory(
    spec: ModelSpec,
    gpu: Gpu,
    vectors: VectorProducts,
    rows: int,
    short: torch.dtype,
    splits: Mapping[int, Split] | None = None,
    piece_bytes: int = 0,
    moving: bool = False,
) -> tuple[PlannedMemory, int, StreamPlan | None]:
    """What an executor will allocate for weights and workspace, the int32 words of the weights, and what crosses.

    `piece_bytes`: cold halves cross to the card in pieces of that size (0: they do not); `moving`: experts move.
    """
    memory = WeightMemory(gpu)
    model = ModelBuilder(spec, memory, splits).build()
    unreal = replace(gpu, device=torch.device("meta"))
    stream = StreamPlan(gpu, spec, splits, piece_bytes) if splits and piece_bytes else None
    space = make_workspace(unreal, model, vectors, rows, short, () if stream is None else stream.blocks)
    slots = 0 if stream is None else stream.nbytes
    if splits and moving:
        words, places = landing_words(gpu, spec, splits)
        slots += 4 * words * places
    return PlannedMemory(memory.words * 4, space.nbytes + slots), memory.words, stream

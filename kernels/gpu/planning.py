"""What an executor will allocate on a card, from sizes alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from localllm.kernels.errors import OutOfMemoryError

from .card_memory import LOADING, SMALL, Arena, in_grains
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
    """Bytes on the card before anything is allocated.

    `slots` and `buffers` are the workspace; `loading` must be free beside them while weights are packed, and the
    allocator keeps `small` for itself.
    """

    weights: int
    slots: int
    buffers: int
    loading: int
    small: int

    @property
    def workspace(self) -> int:
        """Bytes of all that lies beside the weights."""
        return self.slots + self.buffers

    @property
    def total(self) -> int:
        """All of them."""
        return self.weights + self.workspace + self.loading + self.small

    def check(self, what: str, cache: int, budget: int | None) -> None:
        """OutOfMemoryError, beginning with `what` (of the size that is needed), when it and a KV cache do not fit."""
        if budget is not None and self.total + cache > budget:
            sizes = f"weights {gib(self.weights)}, workspace {gib(self.total - self.weights)}, KV {gib(cache)}"
            raise OutOfMemoryError(
                f"{what.format(gib(self.total + cache))} ({sizes}), but the budget is {gib(budget)}",
                hint="Use a smaller quantisation, a smaller --vram share elsewhere, or --device cpu.",
            )


def gib(size: int) -> str:
    """A size for people."""
    return f"{size / (1 << 30):.2f} GiB"


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
    arena = Arena()
    unreal = replace(gpu, device=torch.device("meta"), arena=arena)
    stream = StreamPlan(gpu, spec, splits, piece_bytes) if splits and piece_bytes else None
    make_workspace(unreal, model, vectors, rows, short, () if stream is None else stream.blocks)
    slots = Arena()
    if stream is not None:
        stream.make_slots(unreal.inside(slots))
    if splits and moving:
        words, places = landing_words(gpu, spec, splits)
        unreal.inside(slots).empty((places, words), torch.int32)
    buffers = in_grains(gpu, arena.used)
    weights, beside = in_grains(gpu, 4 * memory.words), in_grains(gpu, slots.used)
    loading = 0 if gpu.interpreted else max(0, LOADING - buffers)
    planned = PlannedMemory(weights, beside, buffers, loading, 0 if gpu.interpreted else SMALL)
    return planned, memory.words, stream

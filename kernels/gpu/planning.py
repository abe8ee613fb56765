"""What an executor will allocate on a card, from sizes alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from .model import ModelBuilder
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
) -> tuple[PlannedMemory, int]:
    """What an executor will allocate for weights and workspace, and the int32 words of the weights."""
    memory = WeightMemory(gpu)
    model = ModelBuilder(spec, memory, splits).build()
    unreal = replace(gpu, device=torch.device("meta"))
    space = make_workspace(unreal, model, vectors, rows, short)
    return PlannedMemory(memory.words * 4, space.nbytes), memory.words

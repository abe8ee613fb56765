"""Experts that move onto the card while a model runs: packed on the host, across a landing place, into a slot."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from localllm.kernels.hybrid.halves import half_of_experts
from localllm.kernels.spec import MixtureOfExperts

from .half_model import GpuExpertHalf
from .model import ModelBuilder
from .weight_memory import WeightMemory

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy.typing as npt

    from localllm.kernels.hybrid.adaptive import Swap
    from localllm.kernels.hybrid.halves import Split
    from localllm.kernels.spec import ModelSpec

    from .device import Gpu
    from .model import GpuExperts, GpuModel
    from .streaming import StreamedWeights


MOST_PLACES, LANDING_BYTES = 8, 64 << 20  # of experts that land together


def landing_words(gpu: Gpu, spec: ModelSpec, splits: Mapping[int, Split]) -> tuple[int, int]:
    """int32 words of the largest expert that may move, and how many landing places there are; 0: none may."""
    words = 0
    for layer in splits:
        block = spec.layers[layer].feed_forward
        if isinstance(block, MixtureOfExperts):
            memory = WeightMemory(gpu)
            ModelBuilder(spec, memory).stacks(_alone(block, 0))
            words = max(words, memory.words)
    return words, min(MOST_PLACES, len(splits), max(1, LANDING_BYTES // (4 * words))) if words else 0


def _alone(block: MixtureOfExperts, expert: int) -> MixtureOfExperts:
    """A mixture of one of its experts."""
    found = half_of_experts(replace(block, shared=None, shared_gate=None), np.array([expert]))
    assert found is not None
    return found


class ExpertMoves:
    """`places` moves at once. `landing` is on the card; what comes and what goes is packed in the host's memory."""

    def __init__(
        self, gpu: Gpu, spec: ModelSpec, size: tuple[int, int], model: GpuModel, streamed: StreamedWeights | None
    ) -> None:
        """`size`: as `landing_words` gives it."""
        self._gpu, self._spec, self._model, self._streamed = gpu, spec, model, streamed
        words, self.places = size
        self.landing = gpu.empty((self.places, words), torch.int32)
        self._coming = torch.zeros((self.places, words), dtype=torch.int32, pin_memory=not gpu.interpreted)
        self._going = torch.zeros((self.places, words if streamed is not None else 0), dtype=torch.int32)
        self._packed: dict[int, GpuExperts] = {}
        self._gone: dict[int, GpuExperts] = {}
        self._side = None if gpu.interpreted else torch.cuda.Stream(gpu.device)
        self._crossed: torch.cuda.Event | None = None

    def prepare(self, swap: Swap, number: int) -> None:
        """Pack both experts of the `number`-th move in the host's memory: on any thread, with that thread alone."""
        if not self._gpu.interpreted:
            torch.set_num_threads(1)
        self._packed[number] = self._pack(swap.layer, swap.incoming, self._coming[number])
        if self._streamed is not None:
            self._gone[number] = self._pack(swap.layer, swap.outgoing, self._going[number])

    def _pack(self, layer: int, expert: int, memory: torch.Tensor) -> GpuExperts:
        block = self._spec.layers[layer].feed_forward
        assert isinstance(block, MixtureOfExperts)
        return ModelBuilder(self._spec, WeightMemory(self._gpu, memory)).stacks(_alone(block, expert))

    def cross(self, count: int) -> None:
        """Begin the copy of `count` experts to their landing places, beside what the card does."""
        if self._side is None:
            self.landing[:count].copy_(self._coming[:count])
            return
        with torch.cuda.stream(self._side):
            self.landing[:count].copy_(self._coming[:count], non_blocking=True)
            self._crossed = torch.cuda.Event()
            self._crossed.record()

    def crossed(self) -> bool:
        """Whether they have arrived."""
        return self._crossed is None or bool(self._crossed.query())

    def place(self, swap: Swap, number: int, table: npt.NDArray[np.int64]) -> None:
        """Put one into its slot and change the table; the one that goes takes its place among the streamed ones."""
        half = self._model.layers[swap.layer].feed_forward
        assert isinstance(half, GpuExpertHalf)
        assert half.hot is not None
        packed, landing = self._packed[number], self.landing[number]
        if self._crossed is not None:
            torch.cuda.current_stream().wait_event(self._crossed)
        arrays = zip(stack_arrays(packed), stack_arrays(half.hot), strict=True)
        for source, target in arrays:
            start = (source.data_ptr() - self._coming[number].data_ptr()) // 4
            words = source.numel() * source.element_size() // 4
            landed = landing[start : start + words]
            target.view(half.hot.block.experts, -1)[swap.slot].view(torch.int32).copy_(landed)
        half.table.copy_(torch.from_numpy(table.astype(np.int32)))
        if self._streamed is not None:
            self._streamed.exchange(swap.layer, swap.incoming, swap.outgoing, self._gone[number])


def stack_arrays(block: GpuExperts) -> Iterator[torch.Tensor]:
    """Every array of the experts' weights that holds anything."""
    for linear in (block.gate, block.up, block.down):
        if linear is None:
            continue
        if linear.bias is not None:
            yield linear.bias
        for matrix in linear.matrices:
            for array in (matrix.quants, matrix.high, matrix.scales, matrix.supers):
                if array.numel():
                    yield array

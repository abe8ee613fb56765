"""The CPU's half of a model in page-locked memory, and the two slots through which it crosses to the card.

A step of many rows computes whole blocks on the card: while one piece of a block is multiplied, the next one is copied
on a stream of its own. A slot is filled again when the piece in it was used. All of it is captured in the step's graph.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from localllm.kernels.hybrid.halves import SplitExperts
from localllm.kernels.hybrid.pieces import cut
from localllm.kernels.spec import FeedForward, MixtureOfExperts

from .expert_moves import stack_arrays
from .half_model import GpuExpertHalf, GpuHalf, later_rows
from .linear import GpuLinear
from .model import GpuExperts, GpuFeedForward, ModelBuilder
from .programs import streaming as programs
from .weight_memory import WeightMemory

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy.typing as npt

    from localllm.kernels.hybrid.halves import Split
    from localllm.kernels.spec import Linear, ModelSpec

    from .device import Gpu
    from .model import GpuModel

SLOTS = 2
FENCE_WORDS = 16
_SCAN, _BLOCK, _SHARES = 1024, 2048, 8
_MOSTLY = 0.1  # a copy of everything is in time where no more than this share of the experts is expected to stay unused


@dataclass(frozen=True, slots=True, eq=False)
class StreamedPiece:
    """A piece of a layer's cold half: as a block inside its slot, and `words` int32 of it in the host's memory.

    `places`, of experts: int32 per expert of the layer its number in the piece, or -1.
    """

    layer: int
    block: GpuFeedForward | GpuExperts
    words: int
    host: torch.Tensor
    places: torch.Tensor | None


@dataclass(frozen=True, slots=True, eq=False)
class StreamSlots:
    """int32: the slots of pieces, the tables of experts' places, the fence behind copies, and how often experts hit."""

    pieces: list[torch.Tensor]
    tables: torch.Tensor
    fence: torch.Tensor
    uses: torch.Tensor


def _build(builder: ModelBuilder, block: FeedForward | MixtureOfExperts) -> GpuFeedForward | GpuExperts:
    return builder.feed_forward(block) if isinstance(block, FeedForward) else builder.stacks(block)


class StreamPlan:
    """What crosses, from sizes alone: the pieces of every split layer, and the bytes that they need on the card.

    `blocks`: one of every shape, for the workspace that they need.
    """

    def __init__(self, gpu: Gpu, spec: ModelSpec, splits: Mapping[int, Split], piece_bytes: int) -> None:
        self.blocks: list[GpuFeedForward | GpuExperts] = []
        known: dict[tuple[object, ...], int] = {}  # pieces of one shape are counted once

        def words(block: FeedForward | MixtureOfExperts, *, kept: bool = True) -> int:
            shared = None if isinstance(block, FeedForward) else block.shared
            key = (type(block), id(shared), *(_shape(linear) for linear in (block.gate, block.up, block.down)))
            if key not in known:
                memory = WeightMemory(gpu)
                built = _build(ModelBuilder(spec, memory), block)
                known[key] = memory.words
                self.blocks += [built] if kept else []
            return known[key]

        def size_of(block: FeedForward | MixtureOfExperts) -> int:
            return 4 * words(block, kept=False)

        self.pieces = {index: cut(split, piece_bytes, size_of) for index, split in sorted(splits.items())}
        known.clear()
        sizes = [words(piece.block) for pieces in self.pieces.values() for piece in pieces]
        self.slot_words = max(sizes, default=0)
        self.host_bytes = 4 * sum(sizes)
        self.experts = max((s.block.experts for s in splits.values() if isinstance(s, SplitExperts)), default=0)
        count = sum(len(self.pieces[i]) for i, split in splits.items() if isinstance(split, SplitExperts))
        self.table_words = self.experts * count
        self.layers = len(spec.layers)

    def make_slots(self, gpu: Gpu) -> StreamSlots:
        """What lies on the card for all that crosses."""
        return StreamSlots(
            [gpu.empty((self.slot_words,), torch.int32) for _ in range(SLOTS)],
            gpu.empty((self.table_words,), torch.int32),
            gpu.empty((FENCE_WORDS,), torch.int32),
            gpu.empty((self.layers, self.experts), torch.int32),
        )


def _shape(linear: Linear | None) -> object:
    return None if linear is None else (linear.weight.shape, linear.weight.quant_type, linear.bias is None)


class StreamedWeights:
    """The pieces in the host's memory, filled, and the slots on the card."""

    def __init__(
        self,
        gpu: Gpu,
        spec: ModelSpec,
        splits: Mapping[int, Split],
        model: GpuModel,
        plan: StreamPlan,
        piece_bytes: int,
    ) -> None:
        """`piece_bytes`: of the file, packed at once."""
        self.gpu = gpu
        slots = plan.make_slots(gpu)
        self._slots, self.fence, self.uses = slots.pieces, slots.fence, slots.uses
        self.pieces: list[StreamedPiece] = []
        self.by_layer: dict[int, range] = {}
        self._homes: dict[tuple[int, int], tuple[int, int]] = {}  # of layer and expert: its piece and number there
        tables = iter(slots.tables.split(plan.experts) if plan.experts else ())
        for layer, pieces in plan.pieces.items():
            start, split, half = len(self.pieces), splits[layer], model.layers[layer].feed_forward
            for piece in pieces:
                slot = self._slots[len(self.pieces) % SLOTS]
                slot.zero_()  # padding of a piece of another shape
                memory = WeightMemory(gpu, slot, piece_bytes=piece_bytes)
                block = _build(ModelBuilder(spec, memory), piece.block)
                host = torch.empty(memory.words, dtype=torch.int32, pin_memory=not gpu.interpreted)
                host.copy_(slot[: memory.words])
                places = None
                if isinstance(split, SplitExperts) and isinstance(piece.block, MixtureOfExperts):
                    places = next(tables)
                    own = ~split.places - piece.first
                    own = np.where((split.places < 0) & (own >= 0) & (own < piece.block.experts), own, -1)
                    places.copy_(torch.from_numpy(own.astype(np.int32)))
                    for expert in np.flatnonzero(own >= 0).tolist():
                        self._homes[layer, expert] = len(self.pieces), int(own[expert])
                self.pieces.append(StreamedPiece(layer, _joined(half, block, piece.first), memory.words, host, places))
            self.by_layer[layer] = range(start, len(self.pieces))

    @property
    def host_bytes(self) -> int:
        """Bytes of the host's memory, page-locked."""
        return sum(piece.host.nbytes for piece in self.pieces)

    def slot(self, index: int) -> torch.Tensor:
        """Where piece `index` lies while it is used."""
        return self._slots[index % SLOTS]

    def copy_all(self, index: int) -> None:
        """Copy a piece into its slot."""
        piece = self.pieces[index]
        self.slot(index)[: piece.words].copy_(piece.host, non_blocking=True)

    def take_uses(self) -> npt.NDArray[np.int64]:
        """[layers, experts] how often experts were chosen since the last call."""
        found = self.uses.cpu().numpy().astype(np.int64)
        self.uses.zero_()
        return found

    def exchange(self, layer: int, leaving: int, coming: int, packed: GpuExperts) -> None:
        """`packed`, an expert by itself in the host's memory, takes the place of one; between steps only."""
        index, number = self._homes.pop((layer, leaving))
        self._homes[layer, coming] = index, number
        piece, slot = self.pieces[index], self.slot(index)
        assert isinstance(piece.block, GpuExperts)
        for source, array in zip(stack_arrays(packed), stack_arrays(piece.block), strict=True):
            start = (array.data_ptr() - slot.data_ptr()) // 4
            words = array.numel() * array.element_size() // 4
            places = piece.host[start : start + words].view(piece.block.block.experts, -1)
            places[number].copy_(source.view(torch.int32))
        assert piece.places is not None
        piece.places[leaving] = -1
        piece.places[coming] = number

    def copy_hit(self, index: int, chosen: torch.Tensor, count: int) -> None:
        """Copy of a piece's experts those that are among `count` chosen ones, and all that is not an expert's."""
        piece, slot = self.pieces[index], self.slot(index)
        block = piece.block
        if not isinstance(block, GpuExperts):
            self.copy_all(index)
            return
        for array, experts in _arrays(block):
            start = (array.data_ptr() - slot.data_ptr()) // 4
            words = array.numel() * array.element_size() // 4
            source, target = piece.host[start : start + words], slot[start : start + words]
            if experts == 1 or piece.places is None:
                target.copy_(source, non_blocking=True)
                continue
            programs.copy_hit[(experts, _SHARES)](
                source, target, chosen, piece.places, count, words // experts, BLOCK=_BLOCK, SCAN=_SCAN
            )


def _joined(half: object, block: GpuFeedForward | GpuExperts, first: int) -> GpuFeedForward | GpuExperts:
    """A piece with what is on the card already: its neurons' gates, or the layer's router."""
    if isinstance(half, GpuExpertHalf) and isinstance(block, GpuExperts):
        return replace(block, router=half.router)
    if isinstance(half, GpuHalf) and isinstance(block, GpuFeedForward) and half.gates is not None:
        start, gates, count = half.hot_neurons + first, half.gates, block.up.rows
        bias = None if gates.bias is None else gates.bias[start : start + count]
        return replace(block, gate=GpuLinear((later_rows(gates.matrices[0], start, count),), bias))
    return block


def _arrays(block: GpuExperts) -> Iterator[tuple[torch.Tensor, int]]:
    """Every array of a mixture's weights that holds anything, and how many experts it is divided into."""
    shared = () if block.shared is None else (block.shared.gate, block.shared.up, block.shared.down)
    for linear in (block.gate, block.up, block.down, *shared, block.shared_gate):
        if linear is None:
            continue
        if linear.bias is not None:
            yield linear.bias, 1
        for matrix in linear.matrices:
            for array in (matrix.quants, matrix.high, matrix.scales, matrix.supers):
                if array.numel():
                    yield array, matrix.shape.experts


class Stream:
    """The pieces of one step, in order. Call `begin`, then for every piece `take` and `give_back`."""

    def __init__(self, weights: StreamedWeights, rows: int, chosen: torch.Tensor) -> None:
        """`chosen`: where the experts of a layer's rows are when it is released."""
        self.weights = weights
        self._chosen, self._rows = chosen, rows
        gpu = weights.gpu
        self._side = None if gpu.interpreted else torch.cuda.Stream(gpu.device)
        self._hit = [self._only_hit(piece) for piece in weights.pieces]
        self.begin()

    def _only_hit(self, piece: StreamedPiece) -> int:
        """How many choices say which experts are copied; 0: all are, before the choice is known."""
        block = piece.block
        if not isinstance(block, GpuExperts) or piece.places is None:
            return 0
        experts, top_k = len(piece.places), block.block.top_k
        unused = (1 - top_k / experts) ** self._rows
        return 0 if unused <= _MOSTLY else self._rows * top_k

    def begin(self) -> None:
        """Start with the first pieces."""
        count = len(self.weights.pieces)
        self._issued, self._released = 0, -1
        self._ready: list[torch.cuda.Event | None] = [None] * count
        self._used: list[torch.cuda.Event | None] = [None] * count
        self._returned = 0
        if self._side is not None:
            self._side.wait_stream(torch.cuda.current_stream())
        self._issue()

    def release(self, layer: int) -> None:
        """The layer's experts are chosen."""
        self._released = layer
        if self._side is not None and any(self._hit[index] for index in self.weights.by_layer[layer]):
            self._side.wait_stream(torch.cuda.current_stream())
        self._issue()

    def take(self, index: int) -> StreamedPiece:
        """A piece, in its slot when the kernels that are launched next run."""
        if self._side is not None:
            ready = self._ready[index]
            assert ready is not None
            torch.cuda.current_stream().wait_event(ready)
            self.weights.fence.zero_()  # kernels may start early behind kernels only, never behind an event
        return self.weights.pieces[index]

    def give_back(self, index: int) -> None:
        """The kernels that read a piece are launched: its slot is free behind them."""
        if self._side is not None:
            self._used[index] = torch.cuda.Event()
            self._used[index].record()  # type: ignore[union-attr]
        self._returned = index + 1
        self._issue()

    def _issue(self) -> None:
        """Copy what can be copied: the slot is given back, and the choice is known where it matters."""
        while self._issued < len(self.weights.pieces) and self._issued < self._returned + SLOTS:
            index = self._issued
            piece, hit = self.weights.pieces[index], self._hit[index]
            if hit and piece.layer > self._released:
                return
            self._issued += 1
            if self._side is None:
                self._copy(index, hit)
                continue
            with torch.cuda.stream(self._side):
                used = self._used[index - SLOTS] if index >= SLOTS else None
                if used is not None:
                    self._side.wait_event(used)
                self._copy(index, hit)
                self._ready[index] = torch.cuda.Event()
                self._ready[index].record()  # type: ignore[union-attr]

    def _copy(self, index: int, hit: int) -> None:
        if hit:
            self.weights.copy_hit(index, self._chosen, hit)
        else:
            self.weights.copy_all(index)

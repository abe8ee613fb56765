"""A card as the device of a hybrid."""

from __future__ import annotations

import statistics
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from localllm.kernels.errors import ExecutionError
from localllm.kernels.gpu.device import open_gpu, short_type
from localllm.kernels.gpu.executor import GpuExecutor, GpuOptions
from localllm.kernels.gpu.meeting import Meeting
from localllm.kernels.gpu.planning import plan_memory
from localllm.kernels.gpu.vector_products import VectorProducts

from .exchange import Exchange, ExchangeSizes
from .fitting import fit_placement
from .halves import SplitExperts, without_data
from .placement import unit_count
from .switch_over import StreamCost

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy.typing as npt

    from localllm.kernels.executor import Executor, ExecutorOptions
    from localllm.kernels.gpu.expert_moves import ExpertMoves
    from localllm.kernels.spec import ModelSpec
    from localllm.kernels.step import Step

    from .adaptive import Swap
    from .fitting import Rates
    from .halves import Split
    from .placement import Placement

PIECE_BYTES = 16 << 20  # of cold weights in one of the two slots: large enough for the link, small beside what stays
ROOM = 1.25  # of main memory that cold weights need: the rest of the program, and the pages of the file


class GpuDevice:
    """One graph a step on the card; it waits for the CPU inside the graph."""

    name = "cuda"

    def __init__(
        self,
        spec: ModelSpec,
        splits: Mapping[int, Split],
        options: ExecutorOptions,
        patience: float,
        gpu_options: GpuOptions | None = None,
    ) -> None:
        self._gpu = GpuExecutor(spec, options, half_options(gpu_options or GpuOptions(), splits), splits)
        self.stream_from: int | None = None
        self._splits = {index: without_data(split) for index, split in splits.items()}
        self.executor: Executor = self._gpu
        self._pool = ThreadPoolExecutor(1, "localllm-device")
        self._running: Future[None] | None = None
        pinned = not self._gpu.gpu.interpreted

        def allocate(size: int) -> npt.NDArray[np.uint8]:
            self._memory = torch.zeros(size, dtype=torch.uint8, pin_memory=pinned)
            found: npt.NDArray[np.uint8] = self._memory.numpy()
            return found

        planned, used = self._gpu.planned, self._gpu.memory()
        if (planned.weights, planned.workspace) != (used.weights[self.name], used.workspace[self.name]):
            self._gpu.close()
            raise ExecutionError(f"{planned.total} bytes were planned for the card, but others were allocated: {used}")
        sizes = ExchangeSizes.of(splits, len(spec.layers), spec.hidden_size, options.max_rows)
        self.exchange = Exchange(sizes, allocate)
        self._gpu.meet(Meeting(self._gpu.gpu, self.exchange, self._memory, patience))

    def start(self, step: Step, number: int, *, alone: bool = False) -> None:
        """Launch a step. One of a new kind runs once by itself, so that nobody waits while kernels are compiled."""
        if alone:
            self._gpu.start(step, number, streamed=True)
            return
        if not self._gpu.seen(step):
            self._pass(-number)
            self._gpu.start(step, -number)
            self._gpu.finish()
            step = replace(step, moves=())  # those are made
        if self._gpu.gpu.interpreted:  # launches are the work itself, so they must not keep the CPU's half from its own
            self._running = self._pool.submit(self._gpu.start, step, number)
        else:
            self._gpu.start(step, number)

    def stream_cost(self, rows: int) -> StreamCost | None:
        """What copying all and a row of products take on this card."""
        if self._gpu.streamed is None or self._gpu.gpu.interpreted:
            return None
        products, hit = cold_products(self._splits)
        return StreamCost(self._gpu.copy_seconds(), products / self._gpu.multiplications(rows), hit)

    def _pass(self, number: int) -> None:
        """Raise all of the CPU's flags: a step of this number waits for nobody, and its output means nothing."""
        for layer in range(self.exchange.sizes.layers):
            self.exchange.raise_flag("cpu", layer, number)

    def seconds_alone(self, step: Step, repeats: int) -> float:
        """How long the card's half of a step takes when it need not wait for the CPU: the median."""
        samples = []
        for _ in range(repeats):
            self._pass(-1)
            began = time.perf_counter()
            self._gpu.start(step, -1)
            self._gpu.finish()
            samples.append(time.perf_counter() - began)
        return statistics.median(samples)

    @property
    def streamed_bytes(self) -> int:
        """Bytes of the weights that can cross to the card."""
        return 0 if self._gpu.streamed is None else self._gpu.streamed.host_bytes

    def finish(self) -> npt.NDArray[np.float32]:
        """The step's output."""
        if self._running is not None:
            running, self._running = self._running, None
            running.result()
        return self._gpu.finish()

    def take_uses(self) -> npt.NDArray[np.int64]:
        """As the card has counted them."""
        streamed = self._gpu.streamed
        return np.zeros_like(self.exchange.uses()) if streamed is None else streamed.take_uses()

    @property
    def moves_at_once(self) -> int:
        """One a landing place."""
        return self._moves.places

    def prepare(self, swap: Swap, number: int) -> None:
        """Pack the experts that move."""
        self._moves.prepare(swap, number)

    def cross(self, count: int) -> None:
        """Copy those that come to their landing places."""
        self._moves.cross(count)

    def crossed(self) -> bool:
        """Whether they are there."""
        return self._moves.crossed()

    def place(self, swap: Swap, number: int, table: npt.NDArray[np.int64]) -> None:
        """Copy one into its slot, and change the table."""
        self._moves.place(swap, number, table)

    @property
    def _moves(self) -> ExpertMoves:
        moves = self._gpu.moves
        if moves is None:
            raise ExecutionError("this device was opened without room for experts that move")
        return moves

    def close(self) -> None:
        """Free the card's memory."""
        self._pool.shutdown()
        self._gpu.close()


def cold_products(splits: Mapping[int, Split]) -> tuple[float, float]:
    """Multiplications of a row in all cold halves, and of the weights of experts the share that it hits (else 1)."""
    total, hit = 0.0, 1.0
    for split in splits.values():
        cold = split.cold
        if cold is None:
            continue
        matrices = [linear.weight for linear in (cold.gate, cold.up, cold.down) if linear is not None]
        products = float(sum(tensor.rows * tensor.columns for tensor in matrices))
        if isinstance(split, SplitExperts):
            hit = split.block.top_k / split.block.experts
            products *= hit * int((split.places < 0).sum())
        total += products
    return total, hit


def has_room_twice(spec: ModelSpec, placement: Placement, free: int | None) -> bool:
    """Whether cold weights fit into main memory twice: for the CPU, and page-locked as the card reads them."""
    if free is None:
        return True
    cold = 0.0
    for layer, placed in zip(spec.layers, placement.layers, strict=True):
        block = layer.feed_forward
        weights = sum(linear.weight.nbytes for linear in (block.gate, block.up, block.down) if linear is not None)
        cold += weights * (1 - len(placed.units) / unit_count(block))
    return 2 * cold * ROOM <= free


def fit_gpu(
    spec: ModelSpec,
    options: ExecutorOptions,
    budget: int,
    gpu_options: GpuOptions | None = None,
    rates: Rates | None = None,
) -> Placement | None:
    """The largest placement whose weights and workspace take at most `budget` bytes of the card."""
    planned = planned_bytes(spec, options, gpu_options or GpuOptions())
    return fit_placement(spec, budget, planned, mode=options.mode, rates=rates)


def half_options(given: GpuOptions, splits: Mapping[int, Split]) -> GpuOptions:
    """The options of a card that has a half of the model: exact float32 products of few rows, unless others are asked.

    Products of bytes are faster on cards with much bandwidth, but a card that waits for the CPU has the time: on an
    H200 its half takes 1.5 of 24 ms. So the rounding of the CPU's activations is the only one.
    """
    return replace(given, arithmetic=given.arithmetic or "float32") if splits else given


def planned_bytes(spec: ModelSpec, options: ExecutorOptions, own: GpuOptions) -> Callable[[Mapping[int, Split]], int]:
    """What weights and workspace will take of the card, by how the model is split."""
    gpu = open_gpu(own.device)

    def planned(splits: Mapping[int, Split]) -> int:
        vectors = VectorProducts(gpu, half_options(own, splits).arithmetic or gpu.arithmetic)
        short = own.short or short_type(gpu)
        rows, pieces = options.max_rows, own.piece_bytes
        return plan_memory(spec, gpu, vectors, rows, short, splits, pieces, own.moving)[0].total

    return planned

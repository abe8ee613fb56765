"""A card as the device of a hybrid."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from localllm.kernels.errors import ExecutionError, OutOfMemoryError
from localllm.kernels.gpu.device import free_memory, open_gpu, short_type
from localllm.kernels.gpu.executor import GpuExecutor, GpuOptions
from localllm.kernels.gpu.kv_pools import cache_bytes
from localllm.kernels.gpu.meeting import Meeting
from localllm.kernels.gpu.planning import plan_memory
from localllm.kernels.gpu.vector_products import VectorProducts
from localllm.kernels.kv_layout import KVLayout

from .exchange import Exchange, ExchangeSizes
from .executor import HybridExecutor
from .fitting import fit_placement, unit_rates

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    import numpy.typing as npt

    from localllm.kernels.executor import Executor, ExecutorOptions
    from localllm.kernels.spec import ModelSpec
    from localllm.kernels.step import Step

    from .fitting import Rates
    from .halves import Split
    from .placement import Placement


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
        self._gpu = GpuExecutor(spec, options, gpu_options, splits)
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

    def start(self, step: Step, number: int) -> None:
        """Launch a step. One of a new kind runs once by itself, so that nobody waits while kernels are compiled."""
        if not self._gpu.seen(step):
            self._pass(-number)
            self._gpu.start(step, -number)
            self._gpu.finish()
            step = replace(step, moves=())  # those are made
        if self._gpu.gpu.interpreted:  # launches are the work itself, so they must not keep the CPU's half from its own
            self._running = self._pool.submit(self._gpu.start, step, number)
        else:
            self._gpu.start(step, number)

    def _pass(self, number: int) -> None:
        """Raise all of the CPU's flags: a step of this number waits for nobody, and its output means nothing."""
        for layer in range(self.exchange.sizes.layers):
            self.exchange.raise_flag("cpu", layer, number)

    def finish(self) -> npt.NDArray[np.float32]:
        """The step's output."""
        if self._running is not None:
            running, self._running = self._running, None
            running.result()
        return self._gpu.finish()

    def close(self) -> None:
        """Free the card's memory."""
        self._pool.shutdown()
        self._gpu.close()


def open_hybrid(spec: ModelSpec, options: ExecutorOptions) -> HybridExecutor:
    """A model on a card and the CPU, as much as fits beside the announced KV cache on the card.

    Raises OutOfMemoryError when not even attention, cache and head fit there.
    """
    gpu = open_gpu()
    budget = options.vram if options.vram is not None else free_memory(gpu)
    cache = cache_bytes(KVLayout.of(spec), options)
    rates = unit_rates(spec, options.rates) if options.rates else None
    placement = fit_gpu(spec, options, 1 << 62 if budget is None else budget - cache, rates=rates)
    if placement is None:
        raise OutOfMemoryError(
            f"{(budget or 0) / 2**30:.2f} GiB of {gpu.name} do not hold attention, head and KV cache of {spec.name}",
            hint="Give it a larger --vram, ask for a shorter --context, or use --device cpu.",
        )
    return HybridExecutor(spec, placement, GpuDevice, replace(options, vram=budget))


def fit_gpu(
    spec: ModelSpec,
    options: ExecutorOptions,
    budget: int,
    gpu_options: GpuOptions | None = None,
    rates: Rates | None = None,
) -> Placement | None:
    """The largest placement whose weights and workspace take at most `budget` bytes of the card."""
    own = gpu_options or GpuOptions()
    gpu = open_gpu(own.device)
    vectors = VectorProducts(gpu, own.arithmetic or gpu.arithmetic)

    def planned(splits: Mapping[int, Split]) -> int:
        return plan_memory(spec, gpu, vectors, options.max_rows, own.short or short_type(gpu), splits)[0].total

    return fit_placement(spec, budget, planned, mode=options.mode, rates=rates)

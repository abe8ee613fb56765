"""The device of a hybrid: what it must do, and the CPU standing in for it."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

import numpy as np

from localllm.kernels.cpu.executor import CpuExecutor
from localllm.kernels.cpu.lower_experts import refill_expert
from localllm.kernels.cpu.step_state import Word

from .cold import PAUSES_PER_SECOND
from .exchange import Exchange, ExchangeSizes
from .lowering import HotBlocks, write_places

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from localllm.kernels.executor import Executor, ExecutorOptions
    from localllm.kernels.spec import ModelSpec
    from localllm.kernels.step import Step

    from .adaptive import Swap
    from .halves import Split
    from .switch_over import StreamCost


class DeviceHalf(Protocol):
    """Everything of a model that is not on the CPU: `executor` keeps the KV cache and says what is allocated.

    `stream_from`: steps of so many rows or more may be run `alone` (None: none may).
    """

    exchange: Exchange
    executor: Executor
    name: str
    stream_from: int | None

    def start(self, step: Step, number: int, *, alone: bool = False) -> None:
        """Begin step `number`; returns while it runs, and it waits for the CPU's sums, unless it is `alone`."""

    def stream_cost(self, rows: int) -> StreamCost | None:
        """What a streamed step costs, its products measured with `rows` rows; None: none can be run, or measured."""

    def finish(self) -> npt.NDArray[np.float32]:
        """Wait for the end of the step; its output, valid until the next `start`."""

    def take_uses(self) -> npt.NDArray[np.int64]:
        """[layers, experts] how often experts were chosen in the step that ran alone."""

    @property
    def moves_at_once(self) -> int:
        """How many experts may move together (see `swapper.ExpertMover`)."""

    def prepare(self, swap: Swap, number: int) -> None:
        """Get the incoming expert ready."""

    def cross(self, count: int) -> None:
        """Begin to copy experts to the device."""

    def crossed(self) -> bool:
        """Whether they are there."""

    def place(self, swap: Swap, number: int, table: npt.NDArray[np.int64]) -> None:
        """Put one into its slot, and change the table."""

    def close(self) -> None:
        """Free everything. May be called twice."""


class CpuDevice:
    """A second team of threads in the place of a device: the same splits and flags without a card, for tests."""

    name = "device"

    def __init__(self, spec: ModelSpec, splits: Mapping[int, Split], options: ExecutorOptions, patience: float) -> None:
        sizes = ExchangeSizes.of(splits, len(spec.layers), spec.hidden_size, options.max_rows)
        self.exchange = Exchange(sizes, lambda size: np.zeros(size, np.uint8))
        hot = HotBlocks(splits, self.exchange)
        self._cpu = CpuExecutor(spec, options, dict.fromkeys(splits, hot))
        self._cpu.words[Word.PATIENCE] = int(patience * PAUSES_PER_SECOND)
        self.executor: Executor = self._cpu
        self.stream_from: int | None = None
        self._pool = ThreadPoolExecutor(1, "localllm-device")
        self._running: Future[npt.NDArray[np.float32]] | None = None

    def start(self, step: Step, number: int, *, alone: bool = False) -> None:
        """Begin a step on a thread of its own; this device cannot run one alone."""
        self._cpu.words[Word.STEP_NUMBER] = number
        self._running = self._pool.submit(self._run, step)

    def stream_cost(self, rows: int) -> StreamCost | None:
        """Nothing crosses."""
        return None

    def _run(self, step: Step) -> npt.NDArray[np.float32]:
        try:
            return self._cpu.forward(step)
        except BaseException:
            self.exchange.failed = 1  # so that the other half does not wait for what never comes
            raise

    def finish(self) -> npt.NDArray[np.float32]:
        """Its output."""
        if self._running is None:
            raise RuntimeError("finish without start")
        try:
            return self._running.result()
        finally:
            self._running = None

    def take_uses(self) -> npt.NDArray[np.int64]:
        """None ran."""
        return np.zeros_like(self.exchange.uses())

    @property
    def moves_at_once(self) -> int:
        """As many as the CPU's half can."""
        return len(self._cpu.spec.layers)

    def prepare(self, swap: Swap, number: int) -> None:
        """Nothing: the file is at hand."""

    def cross(self, count: int) -> None:
        """Nothing has to."""

    def crossed(self) -> bool:
        """Always."""
        return True

    def place(self, swap: Swap, number: int, table: npt.NDArray[np.int64]) -> None:
        """Repack the incoming expert into its slot."""
        block = self._cpu.spec.layers[swap.layer].feed_forward
        refill_expert(self._cpu.weights, swap.layer, block, swap.incoming, swap.slot)  # type: ignore[arg-type]
        write_places(self._cpu.weights, swap.layer, table, int((table >= 0).sum()))

    def close(self) -> None:
        """End its threads."""
        self._pool.shutdown()
        self._cpu.close()

"""The device of a hybrid: what it must do, and the CPU standing in for it."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

import numpy as np

from localllm.kernels.cpu.executor import CpuExecutor
from localllm.kernels.cpu.step_state import Word

from .cold import PAUSES_PER_SECOND
from .exchange import Exchange, ExchangeSizes
from .lowering import HotBlocks

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from localllm.kernels.executor import Executor, ExecutorOptions
    from localllm.kernels.spec import ModelSpec
    from localllm.kernels.step import Step

    from .halves import Split


class DeviceHalf(Protocol):
    """Everything of a model that is not on the CPU: `executor` keeps the KV cache and says what is allocated."""

    exchange: Exchange
    executor: Executor
    name: str

    def start(self, step: Step, number: int) -> None:
        """Begin step `number`; returns while it runs, and it waits for the CPU's sums."""

    def finish(self) -> npt.NDArray[np.float32]:
        """Wait for the end of the step; its output, valid until the next `start`."""

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
        self._pool = ThreadPoolExecutor(1, "localllm-device")
        self._running: Future[npt.NDArray[np.float32]] | None = None

    def start(self, step: Step, number: int) -> None:
        """Begin a step on a thread of its own."""
        self._cpu.words[Word.STEP_NUMBER] = number
        self._running = self._pool.submit(self._run, step)

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

    def close(self) -> None:
        """End its threads."""
        self._pool.shutdown()
        self._cpu.close()

"""The hybrid executor: a step runs on a device and on the CPU at once, one round trip a layer."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from localllm.kernels.errors import ExecutionError
from localllm.kernels.executor import ExecutorOptions, MemoryUse

from .cold import ColdHalf
from .halves import SplitFeedForward, split_model, without_data
from .placement import LayerPlacement, Placement
from .swapper import Swapper
from .switch_over import switch_over
from .trace import timeline

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy.typing as npt

    from localllm.kernels.kv_layout import KVType
    from localllm.kernels.spec import ModelSpec
    from localllm.kernels.step import Step

    from .adaptive import Swap
    from .device import DeviceHalf
    from .halves import Split

    MakeDevice = Callable[[ModelSpec, Mapping[int, Split], ExecutorOptions, float], DeviceHalf]

PATIENCE = 30.0  # seconds, about, that a half waits for the other one
MEASURED_ROWS = 64  # of products on the device, to see how fast it is
MOST_ROWS = 512  # up to which the CPU's half is measured


class HybridExecutor:
    """Runs a placement of a model. Raises what loading its halves raises, ExecutionError when one is lost."""

    def __init__(
        self,
        spec: ModelSpec,
        placement: Placement,
        make_device: MakeDevice,
        options: ExecutorOptions | None = None,
        *,
        patience: float = PATIENCE,
        adaptive: bool = False,
    ) -> None:
        """`adaptive`: experts change places while the model runs, as they are used."""
        given = options or ExecutorOptions()
        self.spec = spec
        self.max_rows = given.max_rows
        self.placement = placement
        self._patience = patience
        self._splits = split_model(spec, placement, spare=adaptive)
        exact = replace(given, mode="sparse", turbo=None) if given.mode == "turbo" else given  # only the CPU leaves out
        self._device = make_device(spec, self._splits, exact, patience)
        self.layout = self._device.executor.layout
        self._exchange = self._device.exchange
        self._number = 0
        self._lost: str | None = None
        self._seconds = 0.0
        self._alone = False
        try:
            self._cold = ColdHalf(spec, self._splits, self._exchange, given, patience) if self._splits else None
        except BaseException:
            self._device.close()
            raise
        self._splits = {index: without_data(split) for index, split in self._splits.items()}
        self.swapper: Swapper | None = None
        if self._cold is not None and adaptive:
            self.swapper = Swapper(self._splits, len(spec.layers), self._device, self._cold)

    def allocate_kv(self, pages: tuple[int, ...], kv_type: KVType, staging_pages: tuple[int, ...] = ()) -> None:
        """Make the page pools, all on the device."""
        self._device.executor.allocate_kv(pages, kv_type, staging_pages)

    def forward(self, step: Step) -> npt.NDArray[np.float32]:
        """Run at most `max_rows` rows; returns [R, vocabulary] logits or [R, hidden]. Valid until the next call."""
        if self._lost is not None:
            raise ExecutionError(self._lost, hint="Load the model again.")
        self._number += 1
        self._exchange.failed = 0
        began = time.perf_counter()
        alone = self._streams(len(step.tokens))
        self._device.start(step, self._number, alone=alone)
        self._alone = alone
        try:
            if self._cold is not None and not alone:
                spare = self.swapper is not None and self.swapper.preparing
                self._cold.run(len(step.tokens), self._number, spare=spare)
        finally:
            output = self._device.finish()
        self._seconds = time.perf_counter() - began
        self._check()
        if self.swapper is not None:
            self._note_swaps(self.swapper.after(self._uses(), len(step.tokens)))
        return output

    def _uses(self) -> npt.NDArray[np.int64]:
        """[layers, experts] how often experts were chosen in the last step."""
        if self._alone:
            return self._device.take_uses()
        uses = self._exchange.uses()
        found = uses.copy()
        uses[:] = 0
        return found

    def finish_swaps(self) -> None:
        """Complete the swaps of experts that are under way, if there are any."""
        if self.swapper is not None:
            self._note_swaps(self.swapper.finish())

    def _note_swaps(self, swaps: list[Swap]) -> None:
        if not swaps or self.swapper is None:
            return
        layers = list(self.placement.layers)
        for swap in swaps:
            units = self.swapper.residence.on_device(swap.layer)
            layers[swap.layer] = LayerPlacement(units, layers[swap.layer].gate)
        self.placement = Placement(tuple(layers))

    def _streams(self, rows: int) -> bool:
        """Whether a step of so many rows is the device's alone: cold weights cross to it."""
        least = self._device.stream_from
        return self._cold is not None and least is not None and rows >= least

    def _check(self) -> None:
        failed = self._exchange.failed
        if failed:
            self._lost = (
                f"the halves of the model lost each other in layer {failed - 1}: one waited more than "
                f"{self._patience:.0f} s for the other"
            )
            raise ExecutionError(self._lost, hint="Load the model again; if it happens again, run with --device cpu.")

    def read_page(self, group: int, page: int) -> bytes:
        """A page's stored bytes over all layers of the group."""
        return self._device.executor.read_page(group, page)

    def write_page(self, group: int, page: int, data: bytes) -> None:
        """Put back what `read_page` gave."""
        self._device.executor.write_page(group, page, data)

    def forget_pages(self) -> None:
        """What the device does."""
        self._device.executor.forget_pages()

    def memory(self) -> MemoryUse:
        """What is allocated now, by device; what the halves exchange counts as the CPU's workspace."""
        device, cold = self._device.executor.memory(), self._cold
        weights, kv, workspace = (
            _renamed(part, self._device.name) for part in (device.weights, device.kv, device.workspace)
        )
        weights["cpu"] = 0 if cold is None else cold.weight_bytes
        workspace["cpu"] = self._exchange.nbytes + (0 if cold is None else cold.workspace_bytes)
        return MemoryUse(weights, kv, workspace)

    def describe(self) -> str:
        """One line for people."""
        total = sum(self.memory().weights.values()) or 1
        share = self.memory().weights[self._device.name] / total
        threads = 0 if self._cold is None else self._cold.threads
        rest = f"the rest on {threads} CPU threads"
        if self._device.stream_from is not None:
            rest += f", or streamed for steps of {self._device.stream_from} rows or more"
        return f"hybrid: {share:.0%} of the weights on {self._device.executor.describe()}; {rest}"

    def timeline(self) -> list[dict[str, Any]]:
        """When each half worked in the last step, as events of Chrome's trace format; nothing if only one did."""
        if not self._splits or self._alone:
            return []
        exchange = self._exchange
        return timeline(exchange.times("device"), exchange.times("cpu"), sorted(self._splits), self._seconds)

    def cold_profile(self) -> dict[str, int]:
        """Cycles that the CPU's first thread spent in each kind of operation since the last call."""
        return {} if self._cold is None else self._cold.profile()

    def cold_threads(self) -> int:
        """How many threads the CPU's half of a decoded token has now."""
        return 0 if self._cold is None else self._cold.threads_now()

    def cold_seconds(self, repeats: int, rows: int = 1) -> list[float]:
        """How long the CPU's half of a step takes when it need not wait for the device.

        Steps of many rows are of random numbers, and choose random experts.
        """
        samples = []
        if rows > 1:
            self._exchange.fill_with_noise(self._splits)
        for _ in range(repeats if self._cold is not None else 0):
            self._number += 1
            for layer in self._splits:
                self._exchange.raise_flag("device", layer, self._number)
            began = time.perf_counter()
            self._cold.run(rows, self._number, noted=False)  # type: ignore[union-attr]
            samples.append(time.perf_counter() - began)
        self._exchange.uses()[:] = 0  # those choices were nobody's
        return samples

    def choose_switch_over(self) -> None:
        """Measure from how many rows on cold weights are worth copying to the device, where it can."""
        cost = self._device.stream_cost(min(self.max_rows, MEASURED_ROWS)) if self._cold is not None else None
        if cost is not None:
            most = min(self.max_rows, MOST_ROWS)
            self._device.stream_from = switch_over(cost, lambda rows: min(self.cold_seconds(2, rows)), most)

    def firing(self) -> float | None:
        """The share of the CPU's neurons that fired in the last row of gates that crossed; None: no gates did."""
        gates = [split for split in self._splits.values() if isinstance(split, SplitFeedForward) and split.gate]
        if not gates:
            return None
        split = gates[-1]
        first = 0 if split.hot is None else split.hot.up.weight.rows
        row = self._exchange.part("gate").view(np.float32)[first : split.block.up.weight.rows]
        return float((row > 0).mean())

    def close(self) -> None:
        """Free everything; the executor is unusable afterwards. May be called twice."""
        self._lost = self._lost or "the executor is closed"
        if self.swapper is not None:
            self.swapper.close()
        if self._cold is not None:
            self._cold.close()
        self._device.close()


def _renamed(sizes: dict[str, int], name: str) -> dict[str, int]:
    return {name: sum(sizes.values())}

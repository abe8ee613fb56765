"""Moves experts between the halves while a model runs: prepared beside the steps, switched between two of them.

A worker thread repacks the outgoing expert into the CPU's spare place and the incoming one into page-locked memory;
then it crosses to a landing place on the device beside the steps; then, between two steps, it is put into its slot and
both tables are changed. Every step sees one placement from its first layer to its last.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

from .adaptive import Popularity, Residence

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    import numpy.typing as npt

    from .adaptive import Swap
    from .halves import Split


class ExpertMover(Protocol):
    """A half that can exchange experts. Tables are int64 [experts]: an expert's number in the half, or -1."""

    def prepare(self, swap: Swap) -> None:
        """Get ready, on any thread, while steps run; no step may see it."""

    def cross(self, swap: Swap) -> None:
        """Begin what a device does beside the steps; between two of them."""

    def crossed(self) -> bool:
        """Whether that is done."""

    def place(self, swap: Swap, table: npt.NDArray[np.int64]) -> None:
        """Switch to the new placement, between two steps."""


class Swapper:
    """One swap at a time, from the counts of the steps."""

    def __init__(self, splits: Mapping[int, Split], layers: int, device: ExpertMover, cpu: ExpertMover) -> None:
        self.residence = Residence(splits, layers)
        self.popularity = Popularity(*self.residence.shape)
        self._device, self._cpu = device, cpu
        self._pool = ThreadPoolExecutor(1, "localllm-experts")
        self._swap: Swap | None = None
        self._preparing: Future[None] | None = None
        self.swaps = 0

    def after(self, counts: npt.NDArray[np.int64], tokens: int) -> Swap | None:
        """A step of `tokens` rows chose experts [layers, experts]; returns the swap that is completed now."""
        if not self.residence.layers:
            return None
        self.popularity.note(counts, tokens)
        if self._swap is None:
            self.begin(self.popularity.best_swap(self.residence))
            return None
        return self._go_on()

    @property
    def preparing(self) -> bool:
        """Whether the worker is at work, and wants a core."""
        return self._preparing is not None and not self._preparing.done()

    def begin(self, swap: Swap | None) -> None:
        """Prepare a swap."""
        if swap is not None and self._swap is None:
            self._swap = swap
            self._preparing = self._pool.submit(self._prepare, swap)

    def finish(self) -> Swap | None:
        """Wait for the swap that is under way, and complete it."""
        if self._preparing is not None:
            self._preparing.exception()
        done = None
        while self._swap is not None and done is None:
            done = self._go_on()
        return done

    def _go_on(self) -> Swap | None:
        swap = self._swap
        if swap is None:
            return None
        if self._preparing is not None:
            if not self._preparing.done():
                return None
            self._preparing.result()
            self._preparing = None
            self._device.cross(swap)
        if not self._device.crossed():
            return None
        self.residence.apply(swap)
        self._device.place(swap, self.residence.table(swap.layer, hot=True))
        self._cpu.place(swap, self.residence.table(swap.layer, hot=False))
        self._swap = None
        self.swaps += 1
        return swap

    def _prepare(self, swap: Swap) -> None:
        self._cpu.prepare(swap)
        self._device.prepare(swap)

    def close(self) -> None:
        """End the worker."""
        self._pool.shutdown()

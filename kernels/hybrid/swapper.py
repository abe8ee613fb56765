"""Moves experts between the halves while a model runs: prepared beside the steps, switched between two of them.

A worker thread repacks outgoing experts into the CPU's spare places and incoming ones into page-locked memory; then
those cross to landing places on the device beside the steps; then, between two steps, they are put into their slots and
the tables are changed. Several go together, one a layer, as each stage waits for the end of a step. Every step sees one
placement from its first layer to its last.
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
    """A half that can exchange experts, up to `moves_at_once`. Tables: an expert's number there, or -1."""

    @property
    def moves_at_once(self) -> int:
        """How many swaps may be under way together."""

    def prepare(self, swap: Swap, number: int) -> None:
        """Get ready for one, the `number`-th of those that go together, on any thread; no step may see it."""

    def cross(self, count: int) -> None:
        """Begin what a device does beside the steps, for `count` swaps; between two steps."""

    def crossed(self) -> bool:
        """Whether that is done."""

    def place(self, swap: Swap, number: int, table: npt.NDArray[np.int64]) -> None:
        """Switch to the new placement, between two steps."""


class Swapper:
    """A few swaps at a time, from the counts of the steps."""

    def __init__(self, splits: Mapping[int, Split], layers: int, device: ExpertMover, cpu: ExpertMover) -> None:
        self.residence = Residence(splits, layers)
        self.popularity = Popularity(*self.residence.shape)
        self._device, self._cpu = device, cpu
        self._pool = ThreadPoolExecutor(1, "localllm-experts")
        self._swaps: list[Swap] = []
        self._preparing: Future[None] | None = None
        self.swaps = 0

    def after(self, counts: npt.NDArray[np.int64], tokens: int) -> list[Swap]:
        """A step of `tokens` rows chose experts [layers, experts]; returns the swaps that are completed now."""
        if not self.residence.layers:
            return []
        self.popularity.note(counts, tokens)
        done = self._go_on()
        if not self._swaps:
            most = min(self._device.moves_at_once, self._cpu.moves_at_once)
            self.begin(self.popularity.best_swaps(self.residence, most))
        return done

    @property
    def preparing(self) -> bool:
        """Whether the worker is at work, and wants a core."""
        return self._preparing is not None and not self._preparing.done()

    def begin(self, swaps: list[Swap]) -> None:
        """Prepare swaps, at most one a layer, if none are under way."""
        if swaps and not self._swaps:
            self._swaps = swaps
            self._preparing = self._pool.submit(self._prepare, swaps)

    def finish(self) -> list[Swap]:
        """Wait for the swaps that are under way, and complete them."""
        if self._preparing is not None:
            self._preparing.exception()
        done: list[Swap] = []
        while self._swaps:
            done += self._go_on()
        return done

    def _go_on(self) -> list[Swap]:
        swaps = self._swaps
        if self._preparing is not None:
            if not self._preparing.done():
                return []
            self._preparing.result()
            self._preparing = None
            self._device.cross(len(swaps))
        if not swaps or not self._device.crossed():
            return []
        for number, swap in enumerate(swaps):
            self.residence.apply(swap)
            self._device.place(swap, number, self.residence.table(swap.layer, hot=True))
            self._cpu.place(swap, number, self.residence.table(swap.layer, hot=False))
        self._swaps = []
        self.swaps += len(swaps)
        return swaps

    def _prepare(self, swaps: list[Swap]) -> None:
        for number, swap in enumerate(swaps):
            self._cpu.prepare(swap, number)
            self._device.prepare(swap, number)

    def close(self) -> None:
        """End the worker."""
        self._pool.shutdown()

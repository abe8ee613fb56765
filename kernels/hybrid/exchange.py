"""The memory in which the halves meet: rows that cross, and flags that say when they are there.

For every layer the device writes the residual stream (for ReLU models the gates too, for mixtures the experts that were
chosen) and then its flag; the CPU writes the sum of its half and then its own flag. A flag holds the number of the
step it was raised in, so nothing is ever lowered. A half that waits too long leaves a mark in `failed`, on
which both give up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from localllm.kernels.cpu.operation import Rows

from .halves import SplitExperts, SplitFeedForward

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy.typing as npt

    from .halves import Split

    Bytes = npt.NDArray[np.uint8]

LINE = 64
BLOCK = 32
STAMPS = 2  # times a layer that each half leaves: when it began and when it was done


@dataclass(frozen=True, slots=True)
class ExchangeSizes:
    """Bytes of a row, and rows of a step."""

    rows: int
    layers: int
    hidden: int  # floats of a row, whole blocks
    gate: int
    top_k: int
    experts: int  # of a layer

    @classmethod
    def of(cls, splits: Mapping[int, Split], layers: int, hidden_size: int, rows: int) -> ExchangeSizes:
        """What these splits need."""
        gates = [s.gate.weight.rows for s in splits.values() if isinstance(s, SplitFeedForward) and s.gate is not None]
        chosen = [s.block.top_k for s in splits.values() if isinstance(s, SplitExperts)]
        whole = -(-hidden_size // BLOCK) * BLOCK
        experts = max((s.block.experts for s in splits.values() if isinstance(s, SplitExperts)), default=0)
        gate = -(-max(gates, default=0) // BLOCK) * BLOCK
        return cls(rows, layers, whole, gate, max(chosen, default=0), experts)

    @property
    def parts(self) -> dict[str, int]:
        """Bytes of every part."""
        return {
            "x": 4 * self.hidden * self.rows,
            "y": 4 * self.hidden * self.rows,
            "gate": 4 * self.gate * self.rows,
            "chosen": 8 * self.top_k * self.rows,
            "shares": 4 * self.top_k * self.rows,
            "uses": 8 * self.experts * self.layers,
            "device flags": LINE * self.layers,
            "cpu flags": LINE * self.layers,
            "failed": LINE,
            "device times": 8 * STAMPS * self.layers,
            "cpu times": 8 * STAMPS * self.layers,
        }

    @property
    def nbytes(self) -> int:
        """Bytes of all."""
        return sum(_aligned(size) for size in self.parts.values())


class Exchange:
    """Parts of one block of memory, which `allocate` gives (page-locked for a card)."""

    def __init__(self, sizes: ExchangeSizes, allocate: Callable[[int], Bytes]) -> None:
        self.sizes = sizes
        self.memory = allocate(sizes.nbytes + LINE)
        self.memory[:] = 0
        start = -self.memory.ctypes.data % LINE
        self.offsets: dict[str, int] = {}
        for name, size in sizes.parts.items():
            self.offsets[name] = start
            start += _aligned(size)

    def part(self, name: str) -> Bytes:
        """A part's bytes."""
        start = self.offsets[name]
        return self.memory[start : start + self.sizes.parts[name]]

    def address(self, name: str) -> int:
        """Where a part begins."""
        return int(self.memory.ctypes.data) + self.offsets[name]

    def rows(self, name: str, columns: int | None = None) -> Rows:
        """The part "x", "y" or "gate" as rows of that many floats (None: the padded residual's)."""
        return Rows(self.address(name), 4 * (self.sizes.hidden if columns is None else columns))

    def flag(self, side: str, layer: int) -> int:
        """Address of the flag that "device" or "cpu" raises for a layer."""
        return self.address(f"{side} flags") + LINE * layer

    def raise_flag(self, side: str, layer: int, number: int) -> None:
        """Raise a flag from Python."""
        self.part(f"{side} flags").view(np.int64)[LINE // 8 * layer] = number

    def times(self, side: str) -> npt.NDArray[np.int64]:
        """[layers, 2] when a half began and ended its part of each layer, in units of its own clock."""
        return self.part(f"{side} times").view(np.int64).reshape(-1, STAMPS)

    def uses(self) -> npt.NDArray[np.int64]:
        """[layers, experts] how often the experts were chosen; who reads it may set it to zero."""
        return self.part("uses").view(np.int64).reshape(self.sizes.layers, self.sizes.experts)

    @property
    def failed(self) -> int:
        """0, or 1 + the layer at which a half gave up."""
        return int(self.part("failed").view(np.int64)[0])

    @failed.setter
    def failed(self, value: int) -> None:
        self.part("failed").view(np.int64)[0] = value

    def fill_with_noise(self, splits: Mapping[int, Split]) -> None:
        """Random rows, gates and choices of experts, for measurements."""
        rng, sizes = np.random.default_rng(1), self.sizes
        self.part("x").view(np.float32)[:] = rng.standard_normal(sizes.rows * sizes.hidden, np.float32)
        gates = rng.standard_normal(sizes.rows * sizes.gate, np.float32) - 1.2  # of 12% neurons
        self.part("gate").view(np.float32)[:] = gates
        experts = [split.block.experts for split in splits.values() if isinstance(split, SplitExperts)]
        if experts:
            order = np.argsort(rng.random((sizes.rows, min(experts))), axis=1)[:, : sizes.top_k]
            self.part("chosen").view(np.int64)[: order.size] = order.reshape(-1)
            self.part("shares").view(np.float32)[:] = 1 / sizes.top_k

    @property
    def nbytes(self) -> int:
        """Bytes of the parts."""
        return self.sizes.nbytes


def _aligned(size: int) -> int:
    return -(-size // LINE) * LINE

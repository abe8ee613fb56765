"""Which expert should be on the device instead of which other one: the least frequently used leave, with hysteresis.

A layer's uses are counted with ageing: every token makes older ones count a little less, so what is hot now wins over
what was hot once. An expert moves only if it is used clearly more often than the one whose place it takes; without
that, experts of nearly equal use would change places for ever, and every move costs a copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .halves import SplitExperts

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from .halves import Split

HALF_LIFE = 1024  # tokens after which a use counts half
FACTOR, ADVANTAGE = 1.25, 4.0  # a newcomer has been used so many times as often, and so many times more


@dataclass(frozen=True, slots=True)
class Swap:
    """`incoming` takes device slot `slot` from `outgoing`, which goes to the CPU's `spare` place.

    The place that `incoming` leaves, `left`, is the spare one afterwards.
    """

    layer: int
    incoming: int
    outgoing: int
    slot: int
    spare: int
    left: int


class Residence:
    """Where the experts of split layers are: a device slot, or a place on the CPU, of which one a layer is spare."""

    def __init__(self, splits: Mapping[int, Split], layers: int) -> None:
        movable = {
            index: split
            for index, split in splits.items()
            if isinstance(split, SplitExperts) and split.hot is not None and split.cold is not None
        }
        self.layers = tuple(movable)
        experts = max((split.block.experts for split in movable.values()), default=0)
        self._slots = np.full((layers, experts), -1)  # by expert: its device slot or -1
        self._places = np.full((layers, experts), -1)  # by expert: its CPU place or -1
        self._spare = np.zeros(layers, np.int64)
        self._experts = {index: split.block.experts for index, split in movable.items()}
        for index, split in movable.items():
            count = split.block.experts
            self._slots[index, :count] = np.maximum(split.places, -1)
            self._places[index, :count] = np.maximum(~split.places, -1)
            self._spare[index] = (split.places < 0).sum()

    @property
    def shape(self) -> tuple[int, int]:
        """Layers of the model, and the most experts of one."""
        return self._slots.shape

    @property
    def hot(self) -> npt.NDArray[np.bool_]:
        """[layers, experts] whether an expert is on the device."""
        return np.asarray(self._slots >= 0)

    @property
    def cold(self) -> npt.NDArray[np.bool_]:
        """[layers, experts] whether an expert is on the CPU, and may move."""
        return np.asarray(self._places >= 0)

    def on_device(self, layer: int) -> tuple[int, ...]:
        """The experts on the device, rising."""
        return tuple(np.flatnonzero(self._slots[layer] >= 0).tolist())

    def swap(self, layer: int, incoming: int, outgoing: int) -> Swap:
        """What must be done to exchange two experts."""
        slot, place = int(self._slots[layer, outgoing]), int(self._places[layer, incoming])
        if slot < 0 or place < 0:
            raise ValueError(f"expert {incoming} is not on the CPU, or {outgoing} is not on the device")
        return Swap(layer, incoming, outgoing, slot, int(self._spare[layer]), place)

    def apply(self, swap: Swap) -> None:
        """It was done."""
        slots, places = self._slots[swap.layer], self._places[swap.layer]
        slots[swap.incoming], places[swap.incoming] = swap.slot, -1
        slots[swap.outgoing], places[swap.outgoing] = -1, swap.spare
        self._spare[swap.layer] = swap.left

    def table(self, layer: int, *, hot: bool) -> npt.NDArray[np.int64]:
        """Per expert its number in one half, or -1."""
        return (self._slots if hot else self._places)[layer, : self._experts[layer]].copy()


class Popularity:
    """How often the experts of each layer were chosen, older choices counting less."""

    def __init__(self, layers: int, experts: int, half_life: float = HALF_LIFE) -> None:
        self.scores = np.zeros((layers, experts))
        self._half_life = half_life

    def note(self, counts: npt.NDArray[np.int64], tokens: int) -> None:
        """`counts` [layers, experts] choices of `tokens` tokens."""
        self.scores *= 0.5 ** (tokens / self._half_life)
        self.scores += counts

    def best_swaps(self, residence: Residence, most: int) -> list[Swap]:
        """Up to `most` swaps, one a layer, that are clearly worth a copy, those that save the CPU most first."""
        if not self.scores.size:
            return []
        newcomers = np.where(residence.cold, self.scores, -np.inf)
        leavers = np.where(residence.hot, self.scores, np.inf)
        incoming, outgoing = newcomers.argmax(axis=1), leavers.argmin(axis=1)
        more, less = newcomers.max(axis=1), leavers.min(axis=1)
        worth = np.flatnonzero((more >= FACTOR * less) & (more - less >= ADVANTAGE))
        gain = more[worth] - less[worth]
        layers = worth[np.argsort(-gain, kind="stable")[:most]].tolist()
        return [residence.swap(layer, int(incoming[layer]), int(outgoing[layer])) for layer in layers]

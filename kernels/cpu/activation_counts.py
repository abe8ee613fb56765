"""Counters that the kernels of a profile add to: how often each neuron fired or each expert was chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt


class ActivationCounts:
    """An array of int64 for every layer that is counted; its address stays the same for the life of this object."""

    def __init__(self) -> None:
        self._arrays: dict[int, npt.NDArray[np.int64]] = {}

    def address(self, layer: int, count: int) -> int:
        """Where `count` counters of a layer are."""
        array = self._arrays.get(layer)
        if array is None:
            array = self._arrays[layer] = np.zeros(count, np.int64)
        return int(array.ctypes.data)

    def by_layer(self) -> dict[int, npt.NDArray[np.int64]]:
        """Copies of the counters."""
        return {layer: array.copy() for layer, array in sorted(self._arrays.items())}

"""Pages of keys and values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from localllm.kernels.errors import ExecutionError, UnsupportedModelError
from localllm.kernels.kv_layout import PAGE_SIZE

if TYPE_CHECKING:
    from localllm.kernels.kv_layout import KVLayout, KVType
    from localllm.kernels.step import PageMove

    from .weights import Real


@dataclass(frozen=True, slots=True, eq=False)
class LayerPages:
    """One layer's pool, slot after slot: keys [slots, heads, key_dim], values [slots, heads, value_dim]."""

    keys: Real
    values: Real


class PagedCache:
    """The pools of all layers; a slot is page * PAGE_SIZE + offset."""

    def __init__(self, layout: KVLayout, pages: tuple[int, ...], kv_type: KVType, dtype: np.dtype[np.floating]) -> None:
        if kv_type not in ("f32", "f16"):
            raise UnsupportedModelError(f"the reference executor has no {kv_type} KV cache", hint="Use f32 or f16.")
        stored = np.dtype(np.float16) if kv_type == "f16" else dtype
        self._layout = layout
        self.layers = []
        for index, shape in enumerate(layout.layers):
            slots = pages[layout.group_of(index)] * PAGE_SIZE
            keys = np.zeros((slots, shape.heads, shape.key_dim), stored)
            self.layers.append(LayerPages(keys, np.zeros((slots, shape.heads, shape.value_dim), stored)))

    @property
    def nbytes(self) -> int:
        """Bytes of all pools."""
        return sum(pages.keys.nbytes + pages.values.nbytes for pages in self.layers)

    def move(self, moves: tuple[PageMove, ...]) -> None:
        """Copy whole pages."""
        for move in moves:
            for array in self._arrays(move.group):
                array[_slots(move.destination)] = array[_slots(move.source)]

    def read_page(self, group: int, page: int) -> bytes:
        """The page's bytes: keys, then values, layer after layer."""
        return b"".join(array[_slots(page)].tobytes() for array in self._arrays(group))

    def write_page(self, group: int, page: int, data: bytes) -> None:
        """The reverse of `read_page`."""
        arrays = [array[_slots(page)] for array in self._arrays(group)]
        expected = sum(array.nbytes for array in arrays)
        if len(data) != expected:
            raise ExecutionError(f"a saved page has {len(data)} bytes, but this cache needs {expected}")
        start = 0
        for array in arrays:
            array[...] = np.frombuffer(data, array.dtype, array.size, start).reshape(array.shape)
            start += array.nbytes

    def _arrays(self, group: int) -> list[Real]:
        layers = [self.layers[index] for index in self._layout.groups[group].layers]
        return [array for pages in layers for array in (pages.keys, pages.values)]


def _slots(page: int) -> slice:
    return slice(page * PAGE_SIZE, (page + 1) * PAGE_SIZE)

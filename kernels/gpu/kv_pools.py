"""The pages of keys and values on the card."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from localllm.kernels.errors import ExecutionError, UnsupportedModelError
from localllm.kernels.kv_layout import PAGE_SIZE

from .card_memory import Arena, in_grains

if TYPE_CHECKING:
    from localllm.kernels.executor import ExecutorOptions
    from localllm.kernels.kv_layout import KVLayout, KVType
    from localllm.kernels.step import PageMove

    from .device import Gpu

MOST_SEQUENCES = 256  # of a step
_TYPES = {"f16": torch.float16, "f32": torch.float32}


@dataclass(frozen=True, slots=True, eq=False)
class LayerPool:
    """One layer's pages [pages, heads, PAGE_SIZE, dimension]; values are empty where keys are their own values."""

    keys: torch.Tensor
    values: torch.Tensor


def kv_bytes(layout: KVLayout, pages: tuple[int, ...], kv_type: KVType) -> int:
    """Bytes of the pools; UnsupportedModelError for a type that the GPU does not have."""
    size = torch.empty(0, dtype=stored_type(kv_type)).element_size()
    return sum(count * PAGE_SIZE * layout.values_per_token(group) * size for group, count in enumerate(pages))


def step_bytes(rows: int, pages: tuple[int, ...]) -> int:
    """Bytes for the inputs of steps of at most `rows` rows over caches of so many pages by group."""
    tables = 4 * min(rows, MOST_SEQUENCES) * (1 << (max(pages) - 1).bit_length()) * len(pages)
    return tables + rows * (64 + 32 * len(pages)) + rows**2 + (1 << 16)


def cache_bytes(gpu: Gpu, layout: KVLayout, options: ExecutorOptions) -> int:
    """What `allocate_kv` will take for the cache that the options announce, with inputs; 0 if they announce none."""
    return allocation(gpu, layout, options.max_rows, options.kv_pages, options.kv_type) if options.kv_pages else 0


def allocation(gpu: Gpu, layout: KVLayout, rows: int, pages: tuple[int, ...], kv_type: KVType) -> int:
    """Bytes of the card that pools take, with the inputs of steps of at most `rows` rows."""
    arena = Arena()
    arena.take((kv_bytes(layout, pages, kv_type),), torch.uint8)
    arena.take((step_bytes(rows, pages),), torch.uint8)
    return in_grains(gpu, arena.used)


def stored_type(kv_type: KVType) -> torch.dtype:
    """The dtype that holds a page of this type."""
    if kv_type not in _TYPES:
        raise UnsupportedModelError(f"the GPU executor has no {kv_type} KV cache", hint="Use --kv f16 or --kv f32.")
    return _TYPES[kv_type]


class KVPools:
    """The pools of all layers, in one allocation."""

    def __init__(self, gpu: Gpu, layout: KVLayout, pages: tuple[int, ...], kv_type: KVType) -> None:
        self.pages = pages
        self._layout = layout
        dtype = stored_type(kv_type)
        self._memory = gpu.empty((kv_bytes(layout, pages, kv_type) // dtype.itemsize,), dtype)
        self.layers: list[LayerPool] = []
        start = 0
        for index, shape in enumerate(layout.layers):
            count = pages[layout.group_of(index)]
            views = []
            for width in (shape.key_dim, shape.value_dim):
                size = count * shape.heads * PAGE_SIZE * width
                views.append(self._memory[start : start + size].view(count, shape.heads, PAGE_SIZE, width))
                start += size
            self.layers.append(LayerPool(*views))

    @property
    def nbytes(self) -> int:
        """Bytes of all pools."""
        return self._memory.nbytes

    def move(self, moves: tuple[PageMove, ...]) -> None:
        """Copy whole pages."""
        for move in moves:
            for array in self._arrays(move.group):
                array[move.destination] = array[move.source]

    def read_page(self, group: int, page: int) -> bytes:
        """The page's bytes: keys, then values, layer after layer."""
        return b"".join(array[page].cpu().numpy().tobytes() for array in self._arrays(group))

    def write_page(self, group: int, page: int, data: bytes) -> None:
        """The reverse of `read_page`."""
        arrays = [array[page] for array in self._arrays(group)]
        expected = sum(array.nbytes for array in arrays)
        if len(data) != expected:
            raise ExecutionError(f"a saved page has {len(data)} bytes, but this cache needs {expected}")
        start = 0
        for array in arrays:
            stored = np.frombuffer(data, np.uint8, array.nbytes, start).copy()
            array.copy_(torch.from_numpy(stored).view(array.dtype).view(array.shape))
            start += array.nbytes

    def _arrays(self, group: int) -> list[torch.Tensor]:
        pools = [self.layers[index] for index in self._layout.groups[group].layers]
        return [array for pool in pools for array in (pool.keys, pool.values) if array.numel()]

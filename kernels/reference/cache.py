"""Pages of keys and values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from localllm.kernels.errors import ExecutionError
from localllm.kernels.kv_layout import PAGE_SIZE, QUANTISED, check_kv_type
from localllm.kernels.kv_quantise import (
    QUANTISATIONS,
    dequantise_keys,
    dequantise_values,
    quantise_keys,
    quantise_values,
)

from .heavy_hitters import KeyScores

if TYPE_CHECKING:
    import numpy.typing as npt

    from localllm.kernels.kv_layout import KVLayout, KVType
    from localllm.kernels.spec import ModelSpec, Rope
    from localllm.kernels.step import PageMove

    from .weights import Real


@dataclass(frozen=True, slots=True, eq=False)
class LayerPages:
    """One layer's pool, slot after slot: keys [slots, heads, key_dim], values [slots, heads, value_dim].

    Rows are written from slot `first_writable` on, rounded to `written` first: behind the main pool of a quantised
    cache lies its staging pool. `pairs` is the order of channels in which rope turns neighbours.
    """

    keys: Real
    values: Real
    written: np.dtype[np.floating]
    first_writable: int
    pairs: npt.NDArray[np.intp]

    def write(self, slots: npt.NDArray[np.int64], keys: Real, values: Real | None) -> None:
        """Keys [M, heads, key_dim] and values of the step's rows."""
        self.keys[self.first_writable + slots] = keys.astype(self.written)
        if values is not None:
            self.values[self.first_writable + slots] = values.astype(self.written)

    def page(self, entry: int) -> slice:
        """The slots of a page entry."""
        start = entry * PAGE_SIZE if entry >= 0 else self.first_writable + ~entry * PAGE_SIZE
        return slice(start, start + PAGE_SIZE)

    def slots_of(self, pages: npt.NDArray[np.int64], index: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The slots of logical indices that lie in these page entries."""
        start = np.where(pages >= 0, pages * PAGE_SIZE, self.first_writable + ~pages * PAGE_SIZE)
        return start + index % PAGE_SIZE


class PagedCache:
    """The pools of all layers; a slot is page * PAGE_SIZE + offset. Quantised pages hold what their codes stand for."""

    def __init__(
        self,
        spec: ModelSpec,
        layout: KVLayout,
        pages: tuple[int, ...],
        kv_type: KVType,
        dtype: np.dtype[np.floating],
        staging: tuple[int, ...],
    ) -> None:
        check_kv_type(spec, kv_type)
        layout.check_staging(kv_type, staging)
        self._layout, self._type = layout, kv_type
        quantised = kv_type in QUANTISED
        written = dtype if kv_type == "f32" else np.dtype(np.float16)
        self.layers: list[LayerPages] = []
        self.scores: list[KeyScores] = []  # for heavy hitters
        for index, (layer, shape) in enumerate(zip(spec.layers, layout.layers, strict=True)):
            group = layout.group_of(index)
            main = pages[group] * PAGE_SIZE
            slots = main + (staging[group] * PAGE_SIZE if quantised else 0)
            stored = dtype if quantised else written
            keys = np.zeros((slots, shape.heads, shape.key_dim), stored)
            values = np.zeros((slots, shape.heads, shape.value_dim), stored)
            pairs = _pairs(layer.attention.rope, shape.key_dim)
            self.scores.append(KeyScores(slots, shape.heads))
            self.layers.append(LayerPages(keys, values, written, main if quantised else 0, pairs))

    @property
    def nbytes(self) -> int:
        """Bytes of all pools."""
        return sum(pages.keys.nbytes + pages.values.nbytes for pages in self.layers)

    def move(self, moves: tuple[PageMove, ...]) -> None:
        """Copy whole pages; from the staging pool to the main one they are quantised."""
        for move in moves:
            for index in self._layout.groups[move.group].layers:
                pages = self.layers[index]
                source, target = pages.page(move.source), pages.page(move.destination)
                if move.source < 0 <= move.destination:
                    self._seal(pages, source, target)
                else:
                    pages.keys[target], pages.values[target] = pages.keys[source], pages.values[source]

    def _seal(self, pages: LayerPages, source: slice, target: slice) -> None:
        kind = QUANTISATIONS[self._type]
        keys = pages.keys[source].astype(np.float32).transpose(1, 2, 0)[:, pages.pairs]
        odd = keys.shape[1] % 2
        keys = np.pad(keys, ((0, 0), (0, odd), (0, 0)))
        keys = dequantise_keys(quantise_keys(keys, kind), kind)[:, : keys.shape[1] - odd]
        restored = np.empty_like(keys)
        restored[:, pages.pairs] = keys
        pages.keys[target] = restored.transpose(2, 0, 1)
        values = pages.values[source].astype(np.float32).transpose(1, 0, 2)
        pages.values[target] = dequantise_values(quantise_values(values, kind), kind).transpose(1, 0, 2)

    def read_page(self, group: int, page: int) -> bytes:
        """The page's bytes: keys, then values, layer after layer."""
        return b"".join(array.tobytes() for array in self._arrays(group, page))

    def write_page(self, group: int, page: int, data: bytes) -> None:
        """The reverse of `read_page`."""
        arrays = self._arrays(group, page)
        expected = sum(array.nbytes for array in arrays)
        if len(data) != expected:
            raise ExecutionError(f"a saved page has {len(data)} bytes, but this cache needs {expected}")
        start = 0
        for array in arrays:
            array[...] = np.frombuffer(data, array.dtype, array.size, start).reshape(array.shape)
            start += array.nbytes

    def _arrays(self, group: int, page: int) -> list[Real]:
        layers = [self.layers[index] for index in self._layout.groups[group].layers]
        return [array[pages.page(page)] for pages in layers for array in (pages.keys, pages.values)]


def _pairs(rope: Rope | None, key_dim: int) -> npt.NDArray[np.intp]:
    """Channels in the order in which the two that rope turns into each other are neighbours."""
    order = np.arange(key_dim)
    if rope is not None and not rope.interleaved:
        turned = rope.dimensions
        order[:turned] = np.arange(turned).reshape(2, -1).T.reshape(-1)
    return order

"""The pools of pages that hold keys and values: a block for every cache group, in it a pool for every layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from localllm.kernels.errors import ExecutionError, UnsupportedModelError
from localllm.kernels.kv_layout import KVType
from localllm.kernels.spec import LatentAttention

from .lower_latent_attention import latent_key_dim
from .memory import Block
from .page_types import FLOAT_PAGES, HALF_PAGES, LayerPages, PagePool, PageShape, PageType
from .quantised_pages import QuantisedPages, recent_shape

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from localllm.kernels.kv_layout import KVLayout
    from localllm.kernels.spec import ModelSpec
    from localllm.kernels.step import PageMove

    Bytes = npt.NDArray[np.uint8]

_PAGE_TYPES: dict[KVType, PageType] = {
    "f16": HALF_PAGES,
    "f32": FLOAT_PAGES,
    "q8": QuantisedPages("q8"),
    "q4": QuantisedPages("q4"),
    "q2": QuantisedPages("q2"),
}


def page_type(kv_type: KVType) -> PageType:
    """The storage type of this name."""
    found = _PAGE_TYPES.get(kv_type)
    if found is None:
        raise UnsupportedModelError(
            f"the CPU executor has no {kv_type} KV cache", hint=f"Use one of: {', '.join(_PAGE_TYPES)}."
        )
    return found


def page_shapes(spec: ModelSpec, layout: KVLayout, kind: PageType) -> list[PageShape]:
    """How the pages of each layer are divided."""
    shapes = []
    for layer, stored in zip(spec.layers, layout.layers, strict=True):
        shape = PageShape.of(stored, kind)
        if isinstance(layer.attention, LatentAttention):
            shape = PageShape(kind, 1, latent_key_dim(layer.attention), 0)
        shapes.append(shape)
    return shapes


class _Pool:
    """The pages of one kind of a layer as arrays [heads, pages, bytes]: keys, values, and what belongs to no head."""

    def __init__(self, shape: PageShape, count: int, memory: Bytes) -> None:
        self.pages = PagePool(shape, memory.ctypes.data, count)
        self._parts: list[Bytes] = []
        start = 0
        heads = shape.heads
        for part in ((heads, shape.key_head_bytes), (heads, shape.value_head_bytes), (1, shape.extra_bytes)):
            stop = start + part[0] * count * part[1]
            self._parts.append(memory[start:stop].reshape(part[0], count, part[1]))
            start = stop

    def read(self, pages: Sequence[int]) -> Bytes:
        """Whole pages in one piece each: [pages, page_bytes]."""
        return np.concatenate([part[:, pages].swapaxes(0, 1).reshape(len(pages), -1) for part in self._parts], axis=1)

    def write(self, pages: Sequence[int], data: Bytes) -> None:
        """The reverse of `read`."""
        start = 0
        for part in self._parts:
            heads, _, size = part.shape
            piece = data[:, start : start + heads * size]
            part[:, pages] = piece.reshape(len(pages), heads, size).swapaxes(0, 1)
            start += heads * size


def _pools(layout: KVLayout, shapes: list[PageShape], counts: tuple[int, ...], blocks: list[Block]) -> list[_Pool]:
    """A pool for every layer; those of a cache group share a block of memory, which is added to `blocks`."""
    pools: dict[int, _Pool] = {}
    for group, count in zip(layout.groups, counts, strict=True):
        sizes = [count * shapes[index].page_bytes for index in group.layers]
        starts = np.cumsum([0, *sizes]).tolist()
        block = Block(starts[-1], "KV cache")
        blocks.append(block)
        for index, start, size in zip(group.layers, starts, sizes, strict=False):
            pools[index] = _Pool(shapes[index], count, block.bytes[start : start + size])
    return [pools[index] for index in range(len(shapes))]


class KVPool:
    """All pages of a model. Memory is zero until it is written, hence always finite.

    `staging` pages of float16, addressed by ~page, lie beside the main ones of a quantised type.
    """

    def __init__(
        self, layout: KVLayout, shapes: list[PageShape], pages: tuple[int, ...], staging: tuple[int, ...] = ()
    ) -> None:
        if len(pages) != len(layout.groups):
            raise ExecutionError(f"{len(pages)} page counts were given for {len(layout.groups)} cache groups")
        self.pages = pages
        self._layout, self._shapes = layout, shapes
        self._blocks: list[Block] = []
        self._main = _pools(layout, shapes, pages, self._blocks)
        self._recent = self._main
        if any(isinstance(shape.page_type, QuantisedPages) for shape in shapes):
            recent_shapes = [recent_shape(shape) for shape in shapes]
            self._recent = _pools(layout, recent_shapes, staging or (0,) * len(pages), self._blocks)
        pairs = zip(self._main, self._recent, strict=True)
        self.layers = [LayerPages(main.pages, recent.pages) for main, recent in pairs]
        pools = self._main if self._recent is self._main else [*self._main, *self._recent]
        self.nbytes = sum(pool.pages.count * pool.pages.shape.page_bytes for pool in pools)

    def forget(self) -> None:
        """All pages are zero again, and take no memory."""
        for block in self._blocks:
            block.forget()

    def main(self, layer: int, page: int) -> Bytes:
        """The bytes of a layer's page in the main pool."""
        data: Bytes = self._main[layer].read([page])[0]
        return data

    def move(self, moves: tuple[PageMove, ...]) -> None:
        """Copy whole pages; those that go from the staging pool to the main one become quantised."""
        sealed: dict[int, list[PageMove]] = {}
        for move in moves:
            if move.source < 0 <= move.destination:
                sealed.setdefault(move.group, []).append(move)
                continue
            for index in self._layout.groups[move.group].layers:
                pool, source = self._of(index, move.source)
                target_pool, target = self._of(index, move.destination)
                target_pool.write([target], pool.read([source]))
        for group, found in sealed.items():
            self._seal(group, found)

    def _seal(self, group: int, moves: list[PageMove]) -> None:
        """Quantise pages of a group, all layers of one shape at a time."""
        sources, targets = [~move.source for move in moves], [move.destination for move in moves]
        by_shape: dict[PageShape, list[int]] = {}
        for index in self._layout.groups[group].layers:
            by_shape.setdefault(self._shapes[index], []).append(index)
        for shape, layers in by_shape.items():
            assert isinstance(shape.page_type, QuantisedPages)
            recent = np.stack([self._recent[index].read(sources) for index in layers])
            for index, pages in zip(layers, shape.page_type.seal(shape, recent), strict=True):
                self._main[index].write(targets, pages)

    def read(self, group: int, page: int) -> bytes:
        """A page's bytes, layer after layer."""
        pools = [self._of(index, page) for index in self._layout.groups[group].layers]
        return b"".join(pool.read([number]).tobytes() for pool, number in pools)

    def write(self, group: int, page: int, data: bytes) -> None:
        """The reverse of `read`."""
        pools = [self._of(index, page) for index in self._layout.groups[group].layers]
        expected = sum(pool.pages.shape.page_bytes for pool, _ in pools)
        if len(data) != expected:
            raise ExecutionError(f"a saved page has {len(data)} bytes, but this cache needs {expected}")
        start = 0
        for pool, number in pools:
            size = pool.pages.shape.page_bytes
            pool.write([number], np.frombuffer(data, np.uint8, size, start).reshape(1, -1))
            start += size

    def _of(self, layer: int, page: int) -> tuple[_Pool, int]:
        """The pool that a page number means, and the number in it."""
        return (self._main[layer], page) if page >= 0 else (self._recent[layer], ~page)

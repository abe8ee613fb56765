"""The pools of pages that hold keys and values: a block for every cache group, in it a run of pages for every layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from localllm.kernels.errors import ExecutionError, UnsupportedModelError
from localllm.kernels.kv_layout import KVType
from localllm.kernels.spec import LatentAttention

from .lower_latent_attention import latent_key_dim
from .lowering import LayerPages
from .memory import Block
from .page_types import FLOAT_PAGES, HALF_PAGES, PageShape, PageType
from .quantised_pages import QuantisedPages, recent_shape

if TYPE_CHECKING:
    import numpy.typing as npt

    from localllm.kernels.kv_layout import KVLayout
    from localllm.kernels.spec import ModelSpec
    from localllm.kernels.step import PageMove

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
            if isinstance(kind, QuantisedPages):
                raise UnsupportedModelError(
                    f"{spec.architecture} models keep latent vectors (MLA), for which there is no {kind.name} KV cache",
                    hint="Use an f16 KV cache; a latent is several times smaller than keys and values already.",
                )
            shape = PageShape(kind, 1, latent_key_dim(layer.attention), 0)
        shapes.append(shape)
    return shapes


class _Pages:
    """The pools of one kind of page: an array [pages, bytes] for every layer, a block of memory for every group."""

    def __init__(self, layout: KVLayout, shapes: list[PageShape], counts: tuple[int, ...]) -> None:
        self.layers: list[npt.NDArray[np.uint8]] = [np.empty((0, 0), np.uint8)] * len(shapes)
        self.nbytes = 0
        for group, count in zip(layout.groups, counts, strict=True):
            block = Block(count * sum(shapes[index].page_bytes for index in group.layers), "KV cache")
            self.nbytes += block.size
            start = 0
            for index in group.layers:
                size = count * shapes[index].page_bytes
                self.layers[index] = block.bytes[start : start + size].reshape(count, shapes[index].page_bytes)
                start += size


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
        self._main = _Pages(layout, shapes, pages)
        self._recent = self._main
        recent_shapes = [recent_shape(shape) for shape in shapes]
        self._quantised = any(isinstance(shape.page_type, QuantisedPages) for shape in shapes)
        if self._quantised:
            self._recent = _Pages(layout, recent_shapes, staging or (0,) * len(pages))
        self.layers = [
            LayerPages(shape, main.ctypes.data, recent_shape, recent.ctypes.data)
            for shape, main, recent_shape, recent in zip(
                shapes, self._main.layers, recent_shapes, self._recent.layers, strict=True
            )
        ]

    @property
    def nbytes(self) -> int:
        """Bytes of all pools."""
        return self._main.nbytes + (self._recent.nbytes if self._quantised else 0)

    def main(self, layer: int) -> npt.NDArray[np.uint8]:
        """The pages of a layer [pages, bytes] in the main pool."""
        return self._main.layers[layer]

    def move(self, moves: tuple[PageMove, ...]) -> None:
        """Copy whole pages; those that go from the staging pool to the main one become quantised."""
        sealed: dict[int, list[PageMove]] = {}
        for move in moves:
            if move.source < 0 <= move.destination:
                sealed.setdefault(move.group, []).append(move)
                continue
            sources, targets = self._of(move.group, move.source), self._of(move.group, move.destination)
            for source, target in zip(sources, targets, strict=True):
                target[:] = source
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
            recent = np.stack([self._recent.layers[index][sources] for index in layers])
            for index, pages in zip(layers, shape.page_type.seal(shape, recent), strict=True):
                self._main.layers[index][targets] = pages

    def read(self, group: int, page: int) -> bytes:
        """A page's bytes, layer after layer."""
        return b"".join(data.tobytes() for data in self._of(group, page))

    def write(self, group: int, page: int, data: bytes) -> None:
        """The reverse of `read`."""
        layers = self._of(group, page)
        expected = sum(len(target) for target in layers)
        if len(data) != expected:
            raise ExecutionError(f"a saved page has {len(data)} bytes, but this cache needs {expected}")
        start = 0
        for target in layers:
            target[:] = np.frombuffer(data, np.uint8, len(target), start)
            start += len(target)

    def _of(self, group: int, page: int) -> list[npt.NDArray[np.uint8]]:
        """The bytes of a page, for every layer of its group."""
        pools, number = (self._main, page) if page >= 0 else (self._recent, ~page)
        return [pools.layers[index][number] for index in self._layout.groups[group].layers]

"""The pools of pages that hold keys and values: a block for every cache group, in it a run of pages for every layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from localllm.kernels.errors import ExecutionError, UnsupportedModelError
from localllm.kernels.spec import LatentAttention

from .lower_latent_attention import latent_key_dim
from .lowering import LayerPages
from .memory import Block
from .page_types import FLOAT_PAGES, HALF_PAGES, PageShape, PageType

if TYPE_CHECKING:
    import numpy.typing as npt

    from localllm.kernels.kv_layout import KVLayout, KVType
    from localllm.kernels.spec import ModelSpec
    from localllm.kernels.step import PageMove

_PAGE_TYPES: dict[str, PageType] = {"f16": HALF_PAGES, "f32": FLOAT_PAGES}


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


class KVPool:
    """All pages of a model. Memory is zero until it is written, hence always finite."""

    def __init__(self, layout: KVLayout, shapes: list[PageShape], pages: tuple[int, ...]) -> None:
        if len(pages) != len(layout.groups):
            raise ExecutionError(f"{len(pages)} page counts were given for {len(layout.groups)} cache groups")
        self.pages = pages
        self._layout = layout
        self._layers: list[npt.NDArray[np.uint8]] = [np.empty((0, 0), np.uint8)] * len(shapes)
        self._blocks = []
        for group, count in zip(layout.groups, pages, strict=True):
            block = Block(count * sum(shapes[index].page_bytes for index in group.layers), "KV cache")
            self._blocks.append(block)
            start = 0
            for index in group.layers:
                size = count * shapes[index].page_bytes
                self._layers[index] = block.bytes[start : start + size].reshape(count, shapes[index].page_bytes)
                start += size
        self.layers = [LayerPages(shape, pages.ctypes.data) for shape, pages in zip(shapes, self._layers, strict=True)]

    @property
    def nbytes(self) -> int:
        """Bytes of all pools."""
        return sum(block.size for block in self._blocks)

    def move(self, moves: tuple[PageMove, ...]) -> None:
        """Copy whole pages."""
        for move in moves:
            for pages in self._of(move.group):
                pages[move.destination] = pages[move.source]

    def read(self, group: int, page: int) -> bytes:
        """A page's bytes, layer after layer."""
        return b"".join(pages[page].tobytes() for pages in self._of(group))

    def write(self, group: int, page: int, data: bytes) -> None:
        """The reverse of `read`."""
        layers = self._of(group)
        expected = sum(pages.shape[1] for pages in layers)
        if len(data) != expected:
            raise ExecutionError(f"a saved page has {len(data)} bytes, but this cache needs {expected}")
        start = 0
        for pages in layers:
            pages[page] = np.frombuffer(data, np.uint8, pages.shape[1], start)
            start += pages.shape[1]

    def _of(self, group: int) -> list[npt.NDArray[np.uint8]]:
        return [self._layers[index] for index in self._layout.groups[group].layers]

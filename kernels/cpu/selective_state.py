"""What the selective policies keep beside the pages of each layer, and where."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from localllm.kernels.kv_layout import PAGE_SIZE
from localllm.kernels.selective import HeavyHitters, QuerySparse

from .heavy_hitters import KeyScores
from .memory import Block
from .page_types import padded
from .query_sparse import sum_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from localllm.kernels.kv_layout import KVLayout
    from localllm.kernels.selective import SelectivePolicy

    from .page_types import PageShape


class SelectiveState:
    """Scores of keys (heavy hitters) or sums of values (query-sparse) for the layers without a window.

    `pages`: per cache group; none before there is a KV cache, when only what depends on nothing else is asked.
    """

    def __init__(
        self, policy: SelectivePolicy | None, layout: KVLayout, shapes: Sequence[PageShape], pages: Sequence[int]
    ) -> None:
        self.policy = policy
        self._blocks: dict[int, Block] = {}
        self._shapes = shapes
        self.scores: dict[int, KeyScores] = {}
        self.most_keys = PAGE_SIZE
        for group, count in zip(layout.groups, pages, strict=True):
            if policy is None or group.window is not None:
                continue
            self.most_keys = max(self.most_keys, count * PAGE_SIZE)
            for index in group.layers:
                self._add(index, count)

    def _add(self, layer: int, pages: int) -> None:
        shape, slots = self._shapes[layer], pages * PAGE_SIZE
        if isinstance(self.policy, HeavyHitters):
            half = 4 * shape.heads * slots
            block = self._blocks[layer] = Block(2 * half, "scores of keys")
            self.scores[layer] = KeyScores(block.address, block.address + half, slots)
        else:
            self._blocks[layer] = Block(pages * sum_bytes(shape), "sums of values")

    def forget(self) -> None:
        """All of it is zero again, and takes no memory."""
        for block in self._blocks.values():
            block.forget()

    @property
    def nbytes(self) -> int:
        """Bytes of all layers."""
        return sum(block.size for block in self._blocks.values())

    def applies(self, layer: int) -> bool:
        """Whether the policy decides over a layer."""
        return layer in self._blocks

    def sums(self, layer: int) -> int:
        """Address of the sums of page 0."""
        return self._blocks[layer].address

    def page_was_written(self, layer: int, page: int, data: npt.NDArray[np.uint8]) -> None:
        """The host put a page's bytes: its values are summed anew."""
        if not isinstance(self.policy, QuerySparse) or layer not in self._blocks:
            return
        shape = self._shapes[layer]
        width = padded(shape.value_dim)
        element = np.float16 if shape.floats.size == 2 else np.float32
        start = shape.heads * shape.key_head_bytes
        end = start + shape.heads * shape.value_head_bytes
        values = data[start:end].view(element).reshape(shape.heads, PAGE_SIZE, width)
        size = sum_bytes(shape)
        sums = self._blocks[layer].bytes[page * size : (page + 1) * size].view(np.float32)
        sums[:] = values.astype(np.float32).sum(axis=1).reshape(-1)

"""Rows of a tensor on their way into tiles."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from localllm.gguf_io import Decomposition, Tensor, decompose

if TYPE_CHECKING:
    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]
    Words = npt.NDArray[np.uint32]

ROWS = 16
BLOCK = 32
WORDS = 8  # in a block: word w holds inputs 4 w to 4 w + 3, a byte each


class Piece:
    """Some tiles' worth of rows: the file's blocks, and what they decompose into."""

    def __init__(self, tensor: Tensor) -> None:
        """`tensor` is a matrix with a multiple of 16 rows."""
        self.tensor = tensor
        self.tiles = tensor.rows // ROWS
        self.blocks = tensor.columns // BLOCK

    @cached_property
    def decomposition(self) -> Decomposition:
        """Integers, scales, minimums."""
        return decompose(self.tensor)

    def bytes_of_blocks(self, start: int, stop: int) -> Bytes:
        """Some bytes of each of the file's blocks, uint8 [tiles, file blocks in a row, 16, stop - start]."""
        size = self.tensor.quant_type.type_size
        by_row = self.tensor.data.reshape(self.tiles, ROWS, -1, size)[..., start:stop]
        return np.ascontiguousarray(by_row.transpose(0, 2, 1, 3))

    def words_of_blocks(self, start: int, stop: int) -> Words:
        """The same as 32-bit words, those of 16 rows side by side: uint32 [tiles, file blocks, words, 16]."""
        return side_by_side(self.bytes_of_blocks(start, stop))


def side_by_side(rows: Bytes) -> Words:
    """Bytes [..., 16, 4 n] as words [..., n, 16]."""
    return np.ascontiguousarray(rows.view(np.uint32).swapaxes(-1, -2))


def byte_mask(mask: int) -> np.uint32:
    """The mask in each byte of a word."""
    return np.uint32(mask * 0x01010101)

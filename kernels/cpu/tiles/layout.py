"""What every tile layout offers: sizes, repacking, and the dot products of a tile with activation rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np

from localllm.gguf_io import Tensor
from localllm.kernels.cpu.activations import RECORD_BYTES
from localllm.kernels.cpu.emit import Emitter
from localllm.kernels.cpu.ir_types import Offset, Value

from .pieces import BLOCK, ROWS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]

_BYTES_AT_ONCE = 1 << 19  # the temporaries of a piece stay in the processor's cache


CACHE_LINE = 64
_AHEAD = 8192


def emit_prefetch(e: Emitter, address: Value, size: int, rows: int) -> None:
    """Ask for the weights some blocks ahead of these `size` bytes, where `rows` rows are multiplied with them.

    Where several tokens share a tile the loop is too slow a reader for the hardware to look far enough ahead: without
    this it waited half its time for memory. With one token that depends on the processor: `Isa.row_ahead`.
    """
    ahead = _AHEAD if rows > 1 else e.isa.row_ahead
    if ahead:
        for offset in range(0, size, CACHE_LINE):
            e.prefetch(address, ahead + offset, locality=2)


class Activation(Enum):
    """What a layout multiplies with; the value is the bytes of a block of 32 inputs."""

    RECORDS = RECORD_BYTES  # 8-bit records: activations.py
    FLOATS = 4 * BLOCK  # float32; a row is padded with zeros to whole blocks


class TileLayout(ABC):
    """A form of weights. A matrix is ceil(rows / 16) tiles, one after the other; a tile is blocks of 32 inputs."""

    name: str
    activation: Activation

    @abstractmethod
    def tile_bytes(self, columns: int) -> int:
        """Bytes of a tile of 16 rows."""

    @abstractmethod
    def emit_dot(
        self,
        e: Emitter,
        tile: Value,
        blocks: Offset,
        activations: Sequence[Value],
        refinements: Offset = 0,
        *,
        first: Offset = 0,
        beside: Callable[[], None] | None = None,
    ) -> list[Value]:
        """The products of a tile with each activation row, as float32 of 16 rows.

        `tile` and `activations` are addresses, `blocks` counts blocks of 32 inputs (`self.blocks`), `refinements` those
        that lie behind each row of records (float rows have none). The blocks are those of the tile from block `first`
        on, which starts a super-block: how a block lies depends on its place. `beside` emits what is done once a block,
        between its products. The order of float operations of a token
        is the same however many tokens there are: results are equal bit for bit.
        """

    @abstractmethod
    def _pack_piece(self, tensor: Tensor, target: Bytes) -> None:
        """Tiles of a matrix with a multiple of 16 rows into uint8 [tiles, tile_bytes]."""

    def tiles(self, rows: int) -> int:
        """Tiles of a matrix: the last one is padded with rows of zeros."""
        return -(-rows // ROWS)

    def blocks(self, columns: int) -> int:
        """Blocks of an activation row, the last one padded with zeros."""
        return -(-columns // BLOCK)

    def repack(self, tensor: Tensor, target: Bytes | None = None, rows: npt.NDArray[np.int64] | None = None) -> Bytes:
        """The matrix as tiles: uint8 [tiles, tile_bytes], written to `target` if given (any strides between tiles).

        `rows` gives the matrix row behind each row of the result, -1 for a row of zeros; default: as they are.
        """
        order = np.arange(tensor.rows) if rows is None else rows
        tiles, row_bytes = self.tiles(len(order)), tensor.data.shape[-1]
        if target is None:
            target = np.empty((tiles, self.tile_bytes(tensor.columns)), np.uint8)
        padded = np.full(tiles * ROWS, -1, np.int64)
        padded[: len(order)] = order
        step = max(1, _BYTES_AT_ONCE // (ROWS * row_bytes))
        for start in range(0, tiles, step):
            chosen = padded[start * ROWS : (start + step) * ROWS]
            data = tensor.data[np.maximum(chosen, 0)]
            data[chosen < 0] = 0
            piece = replace(tensor, shape=(len(chosen), tensor.columns), data=data)
            self._pack_piece(piece, target[start : start + step])
        return target

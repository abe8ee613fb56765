"""One matrix times one vector, outside any step: small networks beside the model, such as heads that guess tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .activation_format import emit_store, row_bytes
from .compile import KernelSource
from .ir_types import F32X16
from .memory import Block
from .tiles.layout import TileLayout
from .tiles.registry import layout_for

if TYPE_CHECKING:
    import numpy.typing as npt

    from localllm.gguf_io import Tensor

    from .compile import KernelCompiler
    from .emit import Emitter
    from .ir_types import Value

    Floats = npt.NDArray[np.float32]

TILE_ROWS, BLOCK = 16, 32
_FIELDS = ("tiles", "tile_bytes", "tile_count", "blocks", "row", "vector", "vector_blocks", "output")


class TiledProduct:
    """`tensor` [rows, columns] of any type, repacked. On the thread that calls it."""

    def __init__(
        self,
        compiler: KernelCompiler,
        tensor: Tensor,
        copies: int = 1,
        *,
        memory: npt.NDArray[np.uint8] | None = None,
    ) -> None:
        """`copies` of the matrix one below the other, for measurements; `memory` (`tiled_bytes`) for a single one."""
        layout = layout_for(tensor.quant_type)
        self.rows, self.columns = tensor.rows * copies, tensor.columns
        tiles = layout.repack(tensor, None if memory is None else memory.reshape(layout.tiles(tensor.rows), -1))
        self._tiles = tiles if copies == 1 else np.resize(tiles, (len(tiles) * copies, *tiles.shape[1:]))
        vector_blocks = -(-self.columns // BLOCK)
        padded = np.zeros(vector_blocks * BLOCK, np.float32)
        self._row = Block(row_bytes(layout.activation, vector_blocks), "activations of a product")
        output = np.zeros(TILE_ROWS * len(self._tiles), np.float32)
        self.vector, self.output = padded[: self.columns], output[: self.rows]
        values = {
            "tiles": self._tiles.ctypes.data,
            "tile_bytes": self._tiles.strides[0],
            "tile_count": len(self._tiles),
            "blocks": layout.blocks(self.columns),
            "row": self._row.bytes.ctypes.data,
            "vector": padded.ctypes.data,
            "vector_blocks": vector_blocks,
            "output": output.ctypes.data,
        }
        self._record = np.array([values[name] for name in _FIELDS], np.int64)
        self._kernel = compiler.compile(product_source(layout))

    @property
    def nbytes(self) -> int:
        """Bytes of the weights, which every call reads."""
        return self._tiles.nbytes

    def __call__(self, vector: Floats) -> Floats:
        """tensor @ vector [rows]; valid until the next call."""
        self.vector[:] = vector
        self._kernel.call(self._record.ctypes.data, 0, 0)
        return self.output

    @property
    def addresses(self) -> tuple[int, int]:
        """Of the kernel and its record, for native callers: it reads `vector` and writes `output`."""
        return self._kernel.address, self._record.ctypes.data


def tiled_bytes(tensor: Tensor) -> int:
    """Bytes of the repacked matrix."""
    layout = layout_for(tensor.quant_type)
    return layout.tiles(tensor.rows) * layout.tile_bytes(tensor.columns)


def product_source(layout: TileLayout) -> KernelSource:
    """Bring the vector into the layout's own form, then multiply it with all tiles."""

    def emit(e: Emitter, record: Value, step: Value, thread: Value) -> None:
        fields = dict(zip(_FIELDS, e.fields(record, len(_FIELDS)), strict=True))

        def block(index: Value, _: list[Value]) -> None:
            source = e.at(fields["vector"], e.mul(index, 4 * BLOCK))
            low, high = e.load(F32X16, source), e.load(F32X16, source, 64)
            emit_store(e, layout.activation, fields["row"], index, low, high)

        e.loop(fields["vector_blocks"], [], block)
        row = e.at(fields["row"], 0)

        def tile(index: Value, _: list[Value]) -> None:
            weights = e.at(fields["tiles"], e.mul(index, fields["tile_bytes"]))
            total = layout.emit_dot(e, weights, fields["blocks"], [row])[0]
            e.store(total, e.at(fields["output"], e.mul(index, 4 * TILE_ROWS)))

        e.loop(fields["tile_count"], [], tile)

    return KernelSource("product", layout.name, emit)

"""Layouts of plain numbers: float32, float16 and bfloat16 weights with float32 activations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from localllm.gguf_io import QuantType, Tensor
from localllm.gguf_io.quants import dequantize
from localllm.kernels.cpu.emit import Emitter
from localllm.kernels.cpu.ir_types import F32, F32X16, Offset, Value
from localllm.kernels.cpu.vector_math import load_bfloat, load_half

from .layout import Activation, TileLayout, emit_prefetch
from .pieces import BLOCK, ROWS

if TYPE_CHECKING:
    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]

_CHAINS = 2  # sums of even and of odd inputs


@dataclass(frozen=True, slots=True)
class FloatLayout(TileLayout):
    """Input after input, each a vector of 16 rows. F32 also takes types of other plain numbers, converted."""

    name: str
    quant_type: QuantType
    activation: Activation = Activation.FLOATS

    @property
    def _item_bytes(self) -> int:
        return self.quant_type.type_size

    def tile_bytes(self, columns: int) -> int:
        """Whole blocks of inputs."""
        return self.blocks(columns) * BLOCK * ROWS * self._item_bytes

    def _pack_piece(self, tensor: Tensor, target: Bytes) -> None:
        if tensor.quant_type is self.quant_type:
            items = tensor.data.view(np.uint32 if self._item_bytes == 4 else np.uint16)
        else:
            items = dequantize(tensor).view(np.uint32)
        tiles, columns = tensor.rows // ROWS, tensor.columns
        result = np.zeros((tiles, self.blocks(columns) * BLOCK, ROWS), items.dtype)
        result[:, :columns] = items.reshape(tiles, ROWS, columns).transpose(0, 2, 1)
        target[:] = result.reshape(tiles, -1).view(np.uint8)

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
        """See TileLayout."""
        tile = e.at(tile, e.mul(e.integer(first), BLOCK * ROWS * self._item_bytes))
        rows = [e.pointer(activation) for activation in activations]

        def inputs(index: Value, sums: list[Value]) -> list[Value]:
            if beside is not None:
                with e.when(e.compare("==", e.bit_and(index, BLOCK - 1), 0)):
                    beside()
            at = e.at(tile, e.mul(index, ROWS * self._item_bytes))
            emit_prefetch(e, at, _CHAINS * ROWS * self._item_bytes, len(rows))
            weights = [self._load(e, at, chain * ROWS * self._item_bytes) for chain in range(_CHAINS)]
            updated: list[Value] = []
            for row in rows:
                for chain in range(_CHAINS):
                    x = e.load_splat(F32, ROWS, row, e.mul(index, 4), 4 * chain)
                    updated.append(e.fma(weights[chain], x, sums[len(updated)]))
            return updated

        zeros = [e.constant(F32X16, 0.0)] * (_CHAINS * len(rows))
        sums = e.loop(e.mul(e.integer(blocks), BLOCK), zeros, inputs, step=_CHAINS)
        return [e.add(even, odd) for even, odd in zip(sums[::2], sums[1::2], strict=True)]

    def _load(self, e: Emitter, address: Value, offset: int) -> Value:
        if self.quant_type is QuantType.F16:
            return load_half(e, ROWS, address, offset)
        if self.quant_type is QuantType.BF16:
            return load_bfloat(e, ROWS, address, offset)
        return e.load(F32X16, address, offset)

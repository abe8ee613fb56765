"""Signs of weights, one bit each: y = scale * (signs . x) with a scale for each row.

A tile of 16 rows is their float32 scales, then 64 bytes for each block of 32 inputs: bit w of byte 4 * r + i is 1 where
the weight of row r for input 4 * w + i is not negative.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from localllm.gguf_io import dequantize
from localllm.kernels.cpu.activations import OFFSET, RECORD_BYTES, SCALE, ZERO_POINT
from localllm.kernels.cpu.ir_types import F32, F32X16, I32, Offset, Value

from .dot import Codes, emit_sums
from .layout import Activation, TileLayout, emit_prefetch
from .packings import BitFields, Field
from .pieces import BLOCK, ROWS, WORDS, side_by_side

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from localllm.gguf_io import Tensor
    from localllm.kernels.cpu.emit import Emitter

    Bytes = npt.NDArray[np.uint8]

_ONE_BIT = BitFields(1, 1, tuple((Field(0, low, 1),) for low in range(8)))
_CODES = Codes(bits=1, zero_point=False, groups=1, top=1)
_HEADER = 4 * ROWS
_BLOCK_BYTES = 64


@dataclass(frozen=True, slots=True)
class SignLayout(TileLayout):
    """See the module; `fill_scales` gives the scales once the signs are packed."""

    name: str = "signs"
    activation: Activation = Activation.RECORDS

    def tile_bytes(self, columns: int) -> int:
        """Scales and blocks."""
        return _HEADER + _BLOCK_BYTES * self.blocks(columns)

    def _pack_piece(self, tensor: Tensor, target: Bytes) -> None:
        tiles, blocks = tensor.rows // ROWS, self.blocks(tensor.columns)
        signs = np.zeros((tensor.rows, blocks * BLOCK), np.uint8)
        signs[:, : tensor.columns] = dequantize(tensor) >= 0
        by_block = np.ascontiguousarray(signs.reshape(tiles, ROWS, blocks, BLOCK).swapaxes(1, 2))
        words = _ONE_BIT.pack(side_by_side(by_block).reshape(-1, WORDS, ROWS))
        target[:, :_HEADER] = 0
        target[:, _HEADER:] = words.view(np.uint8).reshape(tiles, -1)

    def fill_scales(self, target: Bytes, scales: npt.NDArray[np.float32]) -> None:
        """Put the scales of the rows into packed tiles, uint8 [tiles, tile_bytes]; further rows get 0."""
        padded = np.zeros(len(target) * ROWS, np.float32)
        padded[: len(scales)] = scales
        target[:, :_HEADER] = padded.view(np.uint8).reshape(len(target), _HEADER)

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
        """See TileLayout; refinements make no difference to so coarse a product and are left out."""
        tile, rows = e.pointer(tile), [e.pointer(activation) for activation in activations]
        scales = e.mul(e.load(F32X16, tile), 1.0 / ZERO_POINT)

        def block(index: Value, totals: list[Value]) -> list[Value]:
            at = e.at(tile, _HEADER, e.mul(e.add(index, first), _BLOCK_BYTES))
            emit_prefetch(e, at, _BLOCK_BYTES, len(rows))
            if beside is not None:
                beside()
            records = [e.at(row, e.mul(index, RECORD_BYTES)) for row in rows]
            words = _ONE_BIT.emit_words(e, at, _CODES.top)
            result = []
            for total, (ones,), record in zip(totals, emit_sums(e, words, _CODES, records), records, strict=True):
                # signs . q is twice the sum over positive weights less the sum over all, times 128 as in the record
                signed = e.add(e.shift_left(ones, 8), e.load_splat(I32, ROWS, record, OFFSET))
                result.append(e.fma(e.convert(signed, F32), e.load_splat(F32, ROWS, record, SCALE), total))
            return result

        zeros = [e.constant(F32X16, 0.0)] * len(rows)
        return [e.mul(total, scales) for total in e.loop(e.integer(blocks), zeros, block)]


SIGNS = SignLayout()

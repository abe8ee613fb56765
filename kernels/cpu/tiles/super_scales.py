"""Scales of super-blocks of 256 inputs: float16 numbers for all, and small integers for each group of 16 or 32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from localllm.gguf_io.quants.four_bit import scales_of_iq4_xs
from localllm.gguf_io.quants.k_quants import scales_and_minimums, scales_of_q3_k
from localllm.kernels.cpu.emit import Emitter
from localllm.kernels.cpu.ir_types import F32, I8X16, Value
from localllm.kernels.cpu.vector_math import load_half

from .pieces import ROWS, Piece
from .scalings import Factors, Scales, Scaling, float16_of_rows, times

if TYPE_CHECKING:
    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]
    Groups = Callable[[Bytes], Bytes]

SUPER_BLOCK = 8  # blocks


@dataclass(frozen=True, slots=True)
class SuperScale(Scaling):
    """scale = f16 * integer, minimum = -f16 * integer: both products are exact in float32.

    `start` and `stop` are where the packed integers lie in the file's block, `unpack` turns those bytes [n, k] into the
    bytes of our blocks [n, 8, k'] (k' bytes for each row: scales of all groups, then minimums, or both in one byte if
    `nibbles`); the float16 numbers lie at `halves`.
    """

    groups: int
    has_minimum: bool
    start: int
    stop: int
    halves: int
    unpack: Groups
    nibbles: bool = False
    super_block: int = SUPER_BLOCK

    @property
    def header_bytes(self) -> int:  # type: ignore[override]
        """One or two float16 numbers for each row."""
        return 64 if self.has_minimum else 32

    @property
    def block_bytes(self) -> int:  # type: ignore[override]
        """A byte for each row, group and number."""
        return ROWS * self.groups * (2 if self.has_minimum and not self.nibbles else 1)

    def pack(self, piece: Piece) -> tuple[Bytes, Bytes]:
        """The same float16 bits and integers."""
        packed = piece.bytes_of_blocks(self.start, self.stop)
        tiles, supers, rows, size = packed.shape
        integers = self.unpack(packed.reshape(-1, size)).view(np.uint8).reshape(tiles, supers, rows, SUPER_BLOCK, -1)
        ordered = np.ascontiguousarray(integers.transpose(0, 1, 3, 4, 2))
        header = float16_of_rows(piece, self.halves, 2 if self.has_minimum else 1)
        return header, ordered.reshape(tiles, piece.blocks, self.block_bytes)

    def emit_header(self, e: Emitter, header: Value, factors: Factors) -> list[Value]:
        """The float16 numbers times the factors, the second negated."""
        scale = times(e, load_half(e, ROWS, header), factors.scale)
        return [scale, e.mul(load_half(e, ROWS, header, 32), -factors.minimum)] if self.has_minimum else [scale]

    def emit(self, e: Emitter, header: Sequence[Value], block: Value, factors: Factors) -> Scales:
        """Bytes to float32, times the header."""
        loaded = [e.load(I8X16, block, ROWS * i) for i in range(self.block_bytes // ROWS)]
        scales, minimums = loaded[: self.groups], loaded[self.groups :]
        if self.nibbles:
            scales, minimums = [e.bit_and(a, 15) for a in loaded], [e.shift_right(a, 4) for a in loaded]
        return Scales(
            [e.mul(e.convert(a, F32), header[0]) for a in scales],
            [e.mul(e.convert(a, F32), header[1]) for a in minimums],
        )


def _q4_k(packed: Bytes) -> Bytes:
    return np.stack(scales_and_minimums(packed), axis=-1)


def _by_block(integers: npt.NDArray[np.int8] | Bytes) -> Bytes:
    return integers.reshape(len(integers), SUPER_BLOCK, -1).view(np.uint8)


Q2_K = SuperScale(2, True, 0, 16, 80, _by_block, nibbles=True)
Q3_K = SuperScale(2, False, 96, 108, 108, lambda packed: _by_block(scales_of_q3_k(packed)))
Q4_K = SuperScale(1, True, 4, 16, 0, _q4_k)
Q6_K = SuperScale(2, False, 192, 208, 208, _by_block)
IQ4_XS = SuperScale(1, False, 2, 8, 0, lambda packed: _by_block(scales_of_iq4_xs(packed)))

"""How the scales and minimums of a block lie in memory, and how a kernel gets them as float32 of 16 rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from localllm.kernels.cpu.emit import Emitter
from localllm.kernels.cpu.ir_types import F32X16, I8X16, I32, Value
from localllm.kernels.cpu.vector_math import load_half

from .pieces import BLOCK, ROWS, Piece

if TYPE_CHECKING:
    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Scales:
    """Float32 of 16 rows for each group of a block: the weight is integer * scale + minimum."""

    scales: Sequence[Value]
    minimums: Sequence[Value] = ()


@dataclass(frozen=True, slots=True)
class Factors:
    """Powers of two that scales and minimums are to be multiplied with, where it costs least."""

    scale: float = 1.0
    minimum: float = 1.0


def times(e: Emitter, value: Value, factor: float) -> Value:
    """The product; nothing to do for 1."""
    return value if factor == 1.0 else e.mul(value, factor)


class Scaling(ABC):
    """Scales in front of the codes of each block, and, for super-blocks, a header in front of their first block."""

    block_bytes: int
    header_bytes: int
    super_block: int  # blocks that share a header
    has_minimum: bool

    @abstractmethod
    def pack(self, piece: Piece) -> tuple[Bytes, Bytes]:
        """Headers uint8 [tiles, super-blocks, header_bytes] and scales [tiles, blocks, block_bytes]."""

    @abstractmethod
    def emit(self, e: Emitter, header: Sequence[Value], block: Value, factors: Factors) -> Scales:
        """Load a block's scales. `header` is what `emit_header` gave for the same factors."""

    def emit_header(self, e: Emitter, header: Value, factors: Factors) -> list[Value]:
        """Load what the blocks of a super-block share."""
        return []


def _no_header(piece: Piece) -> Bytes:
    return np.empty((piece.tiles, piece.blocks, 0), np.uint8)


def float16_of_rows(piece: Piece, start: int, count: int) -> Bytes:
    """`count` float16 numbers from byte `start` of each of the file's blocks: uint8 [tiles, file blocks, 32 count]."""
    halves = piece.bytes_of_blocks(start, start + 2 * count).view(np.uint16)
    return np.ascontiguousarray(halves.transpose(0, 1, 3, 2)).view(np.uint8).reshape(*halves.shape[:2], -1)


@dataclass(frozen=True, slots=True)
class HalfScale(Scaling):
    """A float16 scale, and with `has_minimum` a float16 minimum, at the start of the file's block."""

    has_minimum: bool = False
    header_bytes: int = 0
    super_block: int = 1

    @property
    def block_bytes(self) -> int:  # type: ignore[override]
        """One or two numbers for each row."""
        return 64 if self.has_minimum else 32

    def pack(self, piece: Piece) -> tuple[Bytes, Bytes]:
        """The same bits."""
        return _no_header(piece), float16_of_rows(piece, 0, 2 if self.has_minimum else 1)

    def emit(self, e: Emitter, header: Sequence[Value], block: Value, factors: Factors) -> Scales:
        """Two conversions."""
        minimums = [times(e, load_half(e, ROWS, block, 32), factors.minimum)] if self.has_minimum else []
        return Scales([times(e, load_half(e, ROWS, block), factors.scale)], minimums)


@dataclass(frozen=True, slots=True)
class ExponentScale(Scaling):
    """A power of two for each block, as MXFP4 has it: byte b is 2 ** (b - 128)."""

    has_minimum: bool = False
    header_bytes: int = 0
    super_block: int = 1
    block_bytes: int = 16

    def pack(self, piece: Piece) -> tuple[Bytes, Bytes]:
        """The same byte."""
        return _no_header(piece), piece.bytes_of_blocks(0, 1).reshape(piece.tiles, piece.blocks, ROWS)

    def emit(self, e: Emitter, header: Sequence[Value], block: Value, factors: Factors) -> Scales:
        """The byte less one is the exponent of a float32; 0 and 1 give subnormal numbers."""
        exponent = e.convert(e.load(I8X16, block), I32, signed=False)
        normal = e.shift_left(e.sub(exponent, 1), 23)
        subnormal = e.shift_left(e.add(exponent, 1), 21)  # 2**-128 and 2**-127
        bits = e.select(e.compare("<", exponent, 2), subnormal, normal)
        return Scales([times(e, e.bitcast(bits, F32X16), factors.scale)])


@dataclass(frozen=True, slots=True)
class FloatScales(Scaling):
    """A float32 scale for each of 1 or 2 groups: what no smaller form holds exactly; or float16 if that does."""

    groups: int
    half: bool = False
    has_minimum: bool = False
    header_bytes: int = 0
    super_block: int = 1

    @property
    def block_bytes(self) -> int:  # type: ignore[override]
        """A number for each row and group."""
        return (2 if self.half else 4) * ROWS * self.groups

    def pack(self, piece: Piece) -> tuple[Bytes, Bytes]:
        """The decomposition's scales; a scale of more than a block is repeated."""
        scales = piece.decomposition.scales
        repeats = piece.decomposition.group_size * self.groups // BLOCK
        scales = np.repeat(scales, repeats, axis=-1).reshape(piece.tiles, ROWS, piece.blocks, self.groups)
        ordered = np.ascontiguousarray(scales.transpose(0, 2, 3, 1)).astype(np.float16 if self.half else np.float32)
        return _no_header(piece), ordered.view(np.uint8).reshape(piece.tiles, piece.blocks, -1)

    def emit(self, e: Emitter, header: Sequence[Value], block: Value, factors: Factors) -> Scales:
        """Loads."""
        if self.half:
            loaded = [load_half(e, ROWS, block, 32 * group) for group in range(self.groups)]
        else:
            loaded = [e.load(F32X16, block, 64 * group) for group in range(self.groups)]
        return Scales([times(e, scale, factors.scale) for scale in loaded])

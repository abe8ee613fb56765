"""Where a file's blocks hold their codes, and how these become the vectors of a packing.

Everything works on 32-bit words of 16 rows side by side: four inputs of a row move together.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .packings import Levels, Packing
from .pieces import BLOCK, ROWS, WORDS, Piece, byte_mask, side_by_side

if TYPE_CHECKING:
    from .pieces import Words


class CodeSource(ABC):
    """How to get the codes of a piece."""

    @abstractmethod
    def vectors(self, piece: Piece, packing: Packing) -> Words:
        """The packed codes, uint32 [tiles, blocks, vectors, 16]."""


@dataclass(frozen=True, slots=True)
class Ready(CodeSource):
    """From byte `start` of the file's block to its end the codes lie as ours do, but row by row."""

    start: int
    signed: bool = False  # two's complement: the zero point is added

    def vectors(self, piece: Piece, packing: Packing) -> Words:
        """Only the order changes."""
        words = piece.words_of_blocks(self.start, piece.tensor.quant_type.type_size)
        if self.signed:
            words ^= byte_mask(0x80)
        return words.reshape(piece.tiles, piece.blocks, packing.vectors, ROWS)


@dataclass(frozen=True, slots=True)
class Plane:
    """`width` bits of 32 bytes from byte `start` of the file's block, from bit `low` up: one input a byte."""

    start: int
    low: int
    width: int


@dataclass(frozen=True, slots=True)
class Planes(CodeSource):
    """The codes of each of 8 blocks of a super-block are put together from planes, the most significant first."""

    blocks: tuple[tuple[Plane, ...], ...]

    def vectors(self, piece: Piece, packing: Packing) -> Words:
        """Shifts and masks."""
        planes = [plane for block in self.blocks for plane in block]
        start, stop = min(plane.start for plane in planes), max(plane.start for plane in planes) + BLOCK
        source = piece.words_of_blocks(start, stop)
        words = np.empty((*source.shape[:2], len(self.blocks), WORDS, ROWS), np.uint32)
        for number, block in enumerate(self.blocks):
            code = words[:, :, number]
            for place, plane in enumerate(block):
                first = (plane.start - start) // 4
                bits = source[:, :, first : first + WORDS]
                if plane.low:
                    bits = bits >> np.uint32(plane.low)
                mask = byte_mask((1 << plane.width) - 1)
                if place == 0:
                    np.bitwise_and(bits, mask, out=code)
                else:
                    code <<= np.uint32(plane.width)
                    code |= bits & mask
        return packing.pack(words.reshape(-1, WORDS, ROWS)).reshape(piece.tiles, piece.blocks, -1, ROWS)


@dataclass(frozen=True, slots=True)
class PairedNibbles(CodeSource):
    """From byte `start` on, the low nibbles of 32 bytes are one of our blocks and the high ones the next.

    Straight to four bits as `FOUR_BITS` packs them, without a byte for each code in between: the most common files are
    loaded three times as fast as through `Planes`.
    """

    start: int

    def vectors(self, piece: Piece, packing: Packing) -> Words:
        """The first 16 inputs of a block go into low nibbles, the others into high ones."""
        words = piece.words_of_blocks(self.start, piece.tensor.quant_type.type_size)
        halves = words.reshape(*words.shape[:2], -1, 2, WORDS // 2, ROWS)
        first, last, low, high = halves[:, :, :, 0], halves[:, :, :, 1], byte_mask(0x0F), byte_mask(0xF0)
        result = np.empty_like(halves)
        result[:, :, :, 0] = (first & low) | ((last & low) << np.uint32(4))
        result[:, :, :, 1] = ((first & high) >> np.uint32(4)) | (last & high)
        return result.reshape(piece.tiles, piece.blocks, packing.vectors, ROWS)


@dataclass(frozen=True, slots=True)
class NibblesAndBits(CodeSource):
    """Q5_0 and Q5_1: 4 bytes with the fifth bits of 32 inputs, then 16 bytes of nibbles, the low ones first."""

    start: int

    def vectors(self, piece: Piece, packing: Packing) -> Words:
        """Shifts and masks."""
        nibbles = piece.words_of_blocks(self.start + 4, self.start + 20)
        flags = np.unpackbits(piece.bytes_of_blocks(self.start, self.start + 4), axis=-1, bitorder="little")
        words = side_by_side(flags) << np.uint32(4)
        words[:, :, : WORDS // 2] |= nibbles & byte_mask(15)
        words[:, :, WORDS // 2 :] |= (nibbles >> np.uint32(4)) & byte_mask(15)
        return packing.pack(words.reshape(-1, WORDS, ROWS)).reshape(piece.tiles, piece.blocks, -1, ROWS)


@dataclass(frozen=True, slots=True)
class Decomposed(CodeSource):
    """Whatever the file's form is: integers that are levels of the packing's table."""

    def vectors(self, piece: Piece, packing: Packing) -> Words:
        """Look up the index of each level."""
        if not isinstance(packing, Levels):
            raise TypeError(f"{packing} has no table of levels")
        indices = packing.indices_of(piece.decomposition.quants)
        by_block = indices.reshape(piece.tiles, ROWS, piece.blocks, BLOCK).swapaxes(1, 2)
        words = side_by_side(np.ascontiguousarray(by_block))
        return packing.pack(words.reshape(-1, WORDS, ROWS)).reshape(piece.tiles, piece.blocks, -1, ROWS)


Q2_K = Planes(tuple((Plane(16 + 32 * (b // 4), 2 * (b % 4), 2),) for b in range(8)))
Q3_K = Planes(tuple((Plane(0, b, 1), Plane(32 + 32 * (b // 4), 2 * (b % 4), 2)) for b in range(8)))
Q4_K = PairedNibbles(16)
Q5_K = Planes(tuple((Plane(16, b, 1), Plane(48 + 32 * (b // 2), 4 * (b % 2), 4)) for b in range(8)))
Q6_K = Planes(
    tuple(
        (Plane(128 + 32 * (b // 4), 2 * (b % 4), 2), Plane(64 * (b // 4) + 32 * (b % 2), 4 * (b % 4 // 2), 4))
        for b in range(8)
    )
)

"""How the codes of a block (16 rows of 32 inputs) lie in memory, and how a kernel gets its 8 words out of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from localllm.kernels.cpu.emit import Emitter
from localllm.kernels.cpu.ir_types import I8X16, I16, Value, vector
from localllm.kernels.cpu.isa import PORTABLE_ARM

from .dot import U8X64
from .pieces import ROWS, byte_mask

if TYPE_CHECKING:
    import numpy.typing as npt

    from .pieces import Bytes, Words

WORD_BYTES = 64


class Packing(ABC):
    """Codes in vectors of 64 bytes."""

    bits: int  # of a code that comes out
    vectors: int

    @property
    def block_bytes(self) -> int:
        """Bytes of the codes of a block."""
        return WORD_BYTES * self.vectors

    @abstractmethod
    def pack(self, words: Words) -> Words:
        """Words of small integers, uint32 [n, 8, 16 rows] with a byte for each input, to [n, vectors, 16 rows]."""

    @abstractmethod
    def emit_words(self, e: Emitter, codes: Value, top: int) -> list[Value]:
        """Load a block's 8 words from the address where its codes start; the codes come below bit `top` of a byte."""

    def _load(self, e: Emitter, codes: Value) -> list[Value]:
        return [e.load(U8X64, codes, WORD_BYTES * i) for i in range(self.vectors)]


def _shift_left(e: Emitter, a: Value, bits: int) -> Value:
    """Shift 64 bytes left (negative: right). Bits cross from byte to byte: mask afterwards."""
    if bits == 0:
        return a
    wide = e.bitcast(a, vector(I16, 32))
    return e.bitcast(e.shift_left(wide, bits) if bits > 0 else e.shift_right(wide, -bits), U8X64)


@dataclass(frozen=True, slots=True)
class Field:
    """`width` bits of each byte of a vector, from bit `low` up."""

    vector: int
    low: int
    width: int


@dataclass(frozen=True, slots=True)
class BitFields(Packing):
    """Each word is put together from bit fields, the most significant first."""

    bits: int
    vectors: int
    words: tuple[tuple[Field, ...], ...]

    def pack(self, words: Words) -> Words:
        """The inverse of `emit_words`."""
        packed = np.empty((len(words), self.vectors, ROWS), np.uint32)
        begun = set()
        for number, fields in enumerate(self.words):
            remaining = self.bits
            for field in fields:
                remaining -= field.width
                part = words[:, number] if remaining == 0 else words[:, number] >> np.uint32(remaining)
                if field.width < self.bits:
                    part = part & byte_mask((1 << field.width) - 1)
                if field.low:
                    part = part << np.uint32(field.low)
                if field.vector in begun:
                    packed[:, field.vector] |= part
                else:
                    packed[:, field.vector] = part
                    begun.add(field.vector)
        return packed

    def emit_words(self, e: Emitter, codes: Value, top: int) -> list[Value]:
        """A shift and a mask for each field, less where it lies right."""
        loaded = self._load(e, codes)
        words = []
        for fields in self.words:
            word, end = None, top
            for field in fields:
                shifted = _shift_left(e, loaded[field.vector], end - field.low - field.width)
                end -= field.width
                mask = ((1 << field.width) - 1) << end
                part = shifted if mask == 255 else e.bit_and(shifted, mask)
                word = part if word is None else e.bit_or(word, part)
            words.append(word)
        return words


# The file's own order for 4 bits: low nibbles are the first 16 inputs. The others: as few shifts as possible.
_F = Field
TWO_BITS = BitFields(2, 2, tuple((_F(v, low, 2),) for v in range(2) for low in (6, 4, 2, 0)))
THREE_BITS = BitFields(
    3,
    3,
    (
        *((_F(v, low, 3),) for v in range(3) for low in (5, 2)),
        (_F(0, 0, 2), _F(2, 1, 1)),
        (_F(1, 0, 2), _F(2, 0, 1)),
    ),
)
FOUR_BITS = BitFields(4, 4, tuple((_F(v, low, 4),) for low in (0, 4) for v in range(4)))
FIVE_BITS = BitFields(
    5,
    5,
    (
        *((_F(v, 3, 5),) for v in range(5)),
        (_F(0, 0, 3), _F(3, 0, 2)),
        (_F(1, 0, 3), _F(4, 0, 2)),
        (_F(2, 0, 3), _F(3, 2, 1), _F(4, 2, 1)),
    ),
)
SIX_BITS = BitFields(
    6,
    6,
    tuple(
        fields
        for v in (0, 3)
        for fields in ((_F(v, 2, 6),), (_F(v + 1, 2, 6),), (_F(v + 2, 2, 6),), tuple(_F(v + i, 0, 2) for i in range(3)))
    ),
)
EIGHT_BITS = BitFields(8, 8, tuple((_F(v, 0, 8),) for v in range(8)))


@dataclass(frozen=True, slots=True)
class Levels(Packing):
    """Indices into a table of at most 16 int8 levels; the word that comes out is level + 128."""

    levels: tuple[int, ...]
    indices: BitFields
    bits: int = 8

    @property
    def vectors(self) -> int:  # type: ignore[override]
        """Those of the indices."""
        return self.indices.vectors

    def indices_of(self, quants: npt.NDArray[np.int8]) -> Bytes:
        """The index of each level."""
        indices = np.zeros(256, np.uint8)
        for index, level in enumerate(self.levels):
            indices[level & 255] = index
        return np.take(indices, quants.view(np.uint8))

    def pack(self, words: Words) -> Words:
        """Pack the indices."""
        return self.indices.pack(words)

    def emit_words(self, e: Emitter, codes: Value, top: int) -> list[Value]:
        """A table look-up in a register where the host has one."""
        return [self._look_up(e, index) for index in self.indices.emit_words(e, codes, self.indices.bits)]

    def _look_up(self, e: Emitter, index: Value) -> Value:
        table = [(level + 128) & 255 for level in self.levels]
        table += [0] * (16 - len(table))
        if e.isa == PORTABLE_ARM:
            constant = e.constant(I8X16, table)
            parts = [e.call("llvm.aarch64.neon.tbl1.v16i8", I8X16, constant, e.part(index, i, 4)) for i in range(4)]
            return e.concatenate(e.concatenate(*parts[:2]), e.concatenate(*parts[2:]))
        if e.isa.byte_shuffle:
            if e.isa.name == "avx512vnni":
                return e.call("llvm.x86.avx512.pshuf.b.512", U8X64, e.constant(U8X64, table * 4), index)
            constant = e.constant(vector(I8X16.element, 32), table * 2)
            halves = [e.call("llvm.x86.avx2.pshuf.b", constant.type, constant, e.part(index, i, 2)) for i in range(2)]
            return e.concatenate(*halves)
        choices = [e.constant(U8X64, level) for level in table[: 1 << self.indices.bits]]
        for bit in range(self.indices.bits):
            is_set = e.compare("!=", e.bit_and(index, 1 << bit), 0)
            choices = [e.select(is_set, odd, even) for even, odd in zip(choices[::2], choices[1::2], strict=True)]
        return choices[0]

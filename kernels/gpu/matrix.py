"""A weight matrix in GPU memory: its packed arrays, what they weigh, and how rows of a file get into them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from localllm.gguf_io import QuantType, decompose, dequantize

from .families import GROUPED, Family, family_of, has_own_form
from .packing import (
    Parts,
    grouped_words,
    interleave,
    pack_high,
    pack_low,
    pad,
    padded_columns,
    padded_rows,
    take_apart,
)

if TYPE_CHECKING:
    from localllm.gguf_io import Tensor


@dataclass(frozen=True, slots=True)
class MatrixShape:
    """What a packed matrix (or a stack of `experts` ones) will occupy, before anything is allocated."""

    family: Family
    rows: int
    columns: int
    experts: int = 1

    @property
    def padded_rows(self) -> int:
        """Rows a matrix, padded."""
        return padded_rows(self.rows)

    @property
    def padded_columns(self) -> int:
        """Columns, padded (KP in the programs)."""
        return padded_columns(self.columns)

    @property
    def words_a_row(self) -> tuple[int, int, int, int]:
        """int32 words a row of quants, high bits, scales and super-block factors."""
        columns, family = self.padded_columns, self.family
        pairs = columns // 64
        supers = -(-columns // 256) if family.has_supers else 0
        return (
            columns * (4 if family.bits < 8 else family.bits) // 32,
            pairs * family.high_words,
            pairs * family.scale_words,
            supers,
        )

    @property
    def nbytes(self) -> int:
        """Bytes in GPU memory."""
        return 4 * sum(self.words_a_row) * self.padded_rows * self.experts


@dataclass(frozen=True, slots=True, eq=False)
class PackedMatrix:
    """int32 arrays of a matrix; an array that a family lacks is empty. Experts follow each other row after row."""

    shape: MatrixShape
    quants: torch.Tensor
    high: torch.Tensor
    scales: torch.Tensor
    supers: torch.Tensor

    @classmethod
    def inside(cls, shape: MatrixShape, memory: torch.Tensor) -> PackedMatrix:
        """A matrix whose arrays lie in `memory`, int32 of shape.nbytes / 4, not yet filled."""
        rows = shape.padded_rows * shape.experts
        arrays = memory.split([words * rows for words in shape.words_a_row])
        return cls(shape, *arrays)

    @property
    def numbers(self) -> torch.Tensor:
        """`quants` with the dtype that programs expect: the numbers of a dense matrix, else int32 words."""
        family = self.shape.family
        if not family.dense:
            return self.quants
        return self.quants.view(
            torch.float32 if family.bits == 32 else torch.bfloat16 if family.brain else torch.float16
        )

    def fill(self, first_row: int, tensor: Tensor, blocks: torch.Tensor) -> None:
        """Write rows from `first_row` (a multiple of 4) on: `blocks` are their bytes in the file, on this device.

        `tensor` is the same rows as the file has them, for the types that are taken apart on the CPU. Missing rows of
        the last group of 4 are zero.
        """
        parts = self._parts(tensor, blocks)
        if isinstance(parts, torch.Tensor):
            rows = pad(pad(parts, self.shape.padded_columns, 1), -(-len(parts) // 4) * 4, 0)
            self._rows(self.quants, 0, first_row, len(rows)).copy_(rows.contiguous().view(torch.int32))
            return
        rows = -(-len(parts.quants) // 4) * 4
        quants = pad(parts.quants, rows, 0)
        bits = self.shape.family.bits
        low = quants.view(torch.int32) if bits == 8 else pack_low(quants)
        self._rows(self.quants, 0, first_row, rows).copy_(low)
        if bits in (5, 6):
            self._rows(self.high, 1, first_row, rows).copy_(pack_high(quants, bits))
        scales = interleave(pad(parts.scales, rows, 0)).view(rows, -1)
        self._rows(self.scales, 2, first_row, rows).copy_(scales)
        if parts.supers is not None:
            supers = interleave(pad(parts.supers, rows, 0)[:, :, None]).view(rows, -1)
            self._rows(self.supers, 3, first_row, rows).copy_(supers)

    def _parts(self, tensor: Tensor, blocks: torch.Tensor) -> Parts | torch.Tensor:
        family, kind = self.shape.family, tensor.quant_type
        if family.dense:
            dtype = torch.float32 if family.bits == 32 else torch.bfloat16 if family.brain else torch.float16
            if kind in (QuantType.F32, QuantType.F16, QuantType.BF16) and family == family_of(kind):
                return blocks.contiguous().view(dtype)
            return torch.from_numpy(dequantize(tensor)).to(dtype).to(blocks.device)
        if has_own_form(kind):
            by_block = blocks.view(len(blocks), -1, kind.type_size)
            return take_apart(kind, by_block)
        found = decompose(tensor)
        scales = torch.from_numpy(found.scales)
        minimums = None if found.minimums is None else torch.from_numpy(found.minimums)
        words = grouped_words(scales, minimums, found.group_size, tensor.columns)
        quants = pad(torch.from_numpy(found.quants).view(torch.uint8), self.shape.padded_columns, 1)
        return Parts(quants.to(blocks.device), words.to(blocks.device))

    def _rows(self, array: torch.Tensor, index: int, first: int, rows: int) -> torch.Tensor:
        return array.view(-1, self.shape.words_a_row[index])[first : first + rows]


def shape_of(tensor: Tensor, family: Family | None = None) -> MatrixShape:
    """The packed shape of a matrix or stack of experts."""
    experts = tensor.shape[0] if len(tensor.shape) == 3 else 1
    found = family or family_of(tensor.quant_type)
    return MatrixShape(found, tensor.rows, tensor.columns, experts)


__all__ = ["GROUPED", "MatrixShape", "PackedMatrix", "shape_of"]

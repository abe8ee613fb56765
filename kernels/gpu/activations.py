"""Rows of numbers between kernels, in the formats that the next product reads."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntFlag
from typing import TYPE_CHECKING

import torch

from .packing import padded_columns

if TYPE_CHECKING:
    from .device import Gpu


class Format(IntFlag):
    """How an activation row is stored; a row may be stored in several ways. `programs/common.py` writes them."""

    NONE = 0
    PLANES = 1  # float32 in the order in which packed weights meet them
    BYTES = 2  # int8 with a scale and a sum per 16
    NATURAL = 4  # float32
    SHORT = 8  # for tensor cores


@dataclass(frozen=True, slots=True, eq=False)
class Activation:
    """Buffers of up to `rows` rows of `columns` values. Padding columns are zero and stay so."""

    columns: int
    formats: Format
    planes: torch.Tensor
    quants: torch.Tensor
    scales: torch.Tensor
    sums: torch.Tensor
    natural: torch.Tensor
    short: torch.Tensor

    @property
    def padded(self) -> int:
        """Values between rows."""
        return padded_columns(self.columns)

    @property
    def words(self) -> torch.Tensor:
        """The int8 quants, four to an int32."""
        return self.quants.view(torch.int32)

    @property
    def pointers(self) -> tuple[torch.Tensor, ...]:
        """The six output arguments of a program that stores activations."""
        return self.planes, self.quants, self.scales, self.sums, self.natural, self.short

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        return sum(x.nbytes for x in self.pointers)


def make_activation(
    gpu: Gpu, columns: int, few: int, many: int, few_formats: Format, many_formats: Format, short: torch.dtype
) -> Activation:
    """Buffers for `few` rows in `few_formats` and for `many` rows in `many_formats`."""
    width = padded_columns(columns)

    def buffer(wanted: Format, values: int, dtype: torch.dtype) -> torch.Tensor:
        rows = many if wanted & many_formats else few if wanted & few_formats else 0
        return gpu.empty((rows, values), dtype)

    return Activation(
        columns,
        few_formats | many_formats,
        buffer(Format.PLANES, width, torch.float32),
        buffer(Format.BYTES, width, torch.int8),
        buffer(Format.BYTES, width // 16, torch.float32),
        buffer(Format.BYTES, width // 16, torch.float32),
        buffer(Format.NATURAL, width, torch.float32),
        buffer(Format.SHORT, width, short),
    )

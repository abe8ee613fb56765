"""Rows of numbers between kernels, in the formats that the next product reads."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntFlag
from typing import TYPE_CHECKING

import torch

from .linear import FRAGMENT_ROWS
from .packing import padded_columns
from .programs.common import fragment_width

if TYPE_CHECKING:
    from .device import Gpu


class Format(IntFlag):
    """How an activation row is stored; a row may be stored in several ways. `programs/common.py` writes them."""

    NONE = 0
    PLANES = 1  # float32 in the order in which packed weights meet them
    BYTES = 2  # int8 with a scale and a sum per 16
    NATURAL = 4  # float32
    SHORT = 8  # for tensor cores
    FRAGMENTS = 16  # up to FRAGMENT_ROWS rows of the same numbers in the order of programs/fragments.py


@dataclass(frozen=True, slots=True, eq=False)
class Activation:
    """Buffers of up to `rows` rows of `columns` values. Padding columns are zero and stay so.

    `fragments` [FRAGMENT_ROWS, ..] lies right before `short`, so that programs find both by one pointer.
    """

    columns: int
    formats: Format
    planes: torch.Tensor
    quants: torch.Tensor
    facts: torch.Tensor
    natural: torch.Tensor
    short: torch.Tensor
    fragments: torch.Tensor

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
        """The five output arguments of a program that stores activations."""
        return self.planes, self.quants, self.facts, self.natural, self.short


def make_activation(
    gpu: Gpu, columns: int, few: int, many: int, few_formats: Format, many_formats: Format, short: torch.dtype
) -> Activation:
    """Buffers for `few` rows in `few_formats` and for `many` rows in `many_formats`."""
    width = padded_columns(columns)

    def buffer(wanted: Format, values: int, dtype: torch.dtype) -> torch.Tensor:
        rows = many if wanted & many_formats else few if wanted & few_formats else 0
        return gpu.empty((rows, values), dtype)

    formats = few_formats | many_formats
    ahead = FRAGMENT_ROWS if formats & Format.FRAGMENTS else 0
    fragments_width = int(fragment_width(width))
    tensor_core_rows = many if many_formats & Format.SHORT else few if few_formats & Format.SHORT else 0
    both = gpu.empty((ahead * fragments_width + tensor_core_rows * width,), short)
    return Activation(
        columns,
        formats,
        buffer(Format.PLANES, width, torch.float32),
        buffer(Format.BYTES, width, torch.int8),
        buffer(Format.BYTES, width // 8, torch.float32),
        buffer(Format.NATURAL, width, torch.float32),
        both[ahead * fragments_width :].view(tensor_core_rows, width),
        both[: ahead * fragments_width].view(ahead, fragments_width),
    )

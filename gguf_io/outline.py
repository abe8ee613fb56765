"""A model of which only the head is here: its metadata, and tensors of the right shape whose bytes mean nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .header import parse_header
from .reader import GGUFFile, Part
from .tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

_SMALL = 1 << 20  # bytes; tensors up to this size get memory of their own, so that code may look into them
_FILLER = np.uint8(0x3C)  # every float made of this byte is finite and not zero


def outline_gguf(heads: Sequence[tuple[str, bytes]]) -> GGUFFile:
    """A model from the first bytes of its files, (name, bytes) of each part in order.

    Sizes and shapes are those of the whole model and take no memory; values are fillers. For plans and estimates only.
    Raises TruncatedGGUFError when a head is too short, GGUFError when it is none; tensors of unknown type are left out.
    """
    parts = tuple(_part(name, head) for name, head in heads)
    tensors: dict[str, Tensor] = {}
    for part in parts:
        for entry in part.header.entries:
            if entry.quant_type is None or entry.row_bytes is None or entry.nbytes is None:
                continue
            shape = (*entry.shape[:-1], entry.row_bytes)
            data = np.full(shape, _FILLER) if entry.nbytes <= _SMALL else np.broadcast_to(_FILLER, shape)
            tensors[entry.name] = Tensor(entry.name, entry.quant_type, entry.shape, data)
    return GGUFFile(parts, tensors)


def _part(name: str, head: bytes) -> Part:
    header = parse_header(head, name)
    ends = [entry.offset + entry.nbytes for entry in header.entries if entry.nbytes is not None]
    return Part(Path(name), head, header.data_start + max(ends, default=0), header)

"""The card's memory as the driver hands it out, and how buffers are cut out of it.

PyTorch's allocator takes memory from the driver in whole megabytes and keeps what is freed. So that it never holds more
than was planned, all buffers are cut out of a few allocations of whole grains, and before the first of them the room
for all is taken and given back: what loading needs for a moment is then found there, too.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .device import Gpu

GRAIN = 2 << 20
LOADING = 16 << 20  # at least so much is free beside the weights while they are packed
SMALL = 8 << 20  # what the allocator keeps for buffers of less than a megabyte: packing's, the graphs' own
MOST_PIECE, LEAST_PIECE = 8 << 20, 1 << 20  # bytes of the file that are uploaded and packed at once
_PACKING = 16  # times the bytes of a piece that packing it needs, at most
_ALIGNMENT = 256


def in_grains(gpu: Gpu, size: int) -> int:
    """Bytes of an allocation of `size`; the interpreter's memory has no grains."""
    return size if gpu.interpreted else -(-size // GRAIN) * GRAIN


def piece_bytes(gpu: Gpu, room: int) -> int:
    """Bytes of the file that may be packed at once, when there is `room` for what that needs for a moment."""
    if gpu.interpreted:
        return MOST_PIECE
    return min(MOST_PIECE, max(LEAST_PIECE, room // _PACKING))


def take_room(gpu: Gpu, size: int) -> None:
    """Let the allocator hold one free block of `size` bytes. Raises torch.OutOfMemoryError when the card has less."""
    if not gpu.interpreted and size:
        torch.cuda.empty_cache()
        torch.empty(size, dtype=torch.uint8, device=gpu.device)


class Arena:
    """Cuts zeroed buffers out of `memory` (uint8, zeros); without it, it only counts them."""

    def __init__(self, memory: torch.Tensor | None = None) -> None:
        self.used = 0
        self._memory = memory

    @property
    def nbytes(self) -> int:
        """Bytes of the memory."""
        return 0 if self._memory is None else self._memory.nbytes

    def take(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """The next buffer."""
        start, size = self.used, math.prod(shape) * dtype.itemsize
        self.used += -(-size // _ALIGNMENT) * _ALIGNMENT
        if self._memory is None:
            return torch.empty(tuple(shape), dtype=dtype, device="meta")
        return self._memory[start : start + size].view(dtype).view(tuple(shape))


def make_arena(gpu: Gpu, size: int) -> Arena:
    """An arena of `size` bytes, in grains."""
    return Arena(torch.zeros(in_grains(gpu, size), dtype=torch.uint8, device=gpu.device))

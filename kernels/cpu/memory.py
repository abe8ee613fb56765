"""Large blocks of memory: private, zeroed when first touched, in huge pages where the system has them."""

from __future__ import annotations

import mmap
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from localllm.kernels.errors import OutOfMemoryError

if TYPE_CHECKING:
    import numpy.typing as npt

ALIGNMENT = 64
_HUGE_PAGE = 1 << 21


class Block:
    """`size` bytes, aligned to a huge page if it is larger than one."""

    def __init__(self, size: int, purpose: str) -> None:
        self.size = size
        try:
            self._mapping, self.bytes = _allocate(size)
        except (OSError, ValueError, MemoryError) as error:
            raise OutOfMemoryError(
                f"{size / 2**20:.0f} MiB for the {purpose} could not be allocated",
                hint="Close other programs, use a smaller context or a smaller model.",
            ) from error
        self.address = self.bytes.ctypes.data

    def forget(self) -> None:
        """The memory goes back to the system, and is zero when it is read next; elsewhere than on Linux it stays."""
        if sys.platform == "linux":
            self._mapping.madvise(mmap.MADV_DONTNEED)


def _allocate(size: int) -> tuple[mmap.mmap, npt.NDArray[np.uint8]]:
    total = max(size, 1) + (_HUGE_PAGE if size >= _HUGE_PAGE else ALIGNMENT)
    if not hasattr(mmap, "MAP_ANONYMOUS"):
        mapping = mmap.mmap(-1, total)
    else:
        # The default of mmap.mmap is a shared mapping, for which Linux ignores the advice below.
        mapping = mmap.mmap(-1, total, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE") and size >= _HUGE_PAGE:
            with suppress(OSError):  # a kernel without huge pages: slower, not wrong
                mapping.madvise(mmap.MADV_HUGEPAGE)
    memory = np.frombuffer(mapping, np.uint8)
    skip = -memory.ctypes.data % (_HUGE_PAGE if size >= _HUGE_PAGE else ALIGNMENT)
    return mapping, memory[skip : skip + size]


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of an arena."""

    arena: Arena
    offset: int
    size: int

    @property
    def address(self) -> int:
        """Where it lies; 0-based while the arena is only planned."""
        return self.arena.base + self.offset

    @property
    def bytes(self) -> npt.NDArray[np.uint8]:
        """Its memory."""
        return self.arena.memory[self.offset : self.offset + self.size]


class Arena:
    """Pieces that are planned one by one and then allocated together."""

    def __init__(self, purpose: str) -> None:
        self.purpose = purpose
        self.size = 0
        self._memory: npt.NDArray[np.uint8] | None = None

    def take(self, size: int) -> Piece:
        """Plan a piece, aligned to a cache line."""
        if self._memory is not None:
            raise ValueError("the arena is allocated already")
        piece = Piece(self, self.size, size)
        self.size += -(-size // ALIGNMENT) * ALIGNMENT
        return piece

    def allocate(self, memory: npt.NDArray[np.uint8] | None = None) -> None:
        """Make all pieces real, in fresh memory or in the given one."""
        self._memory = Block(self.size, self.purpose).bytes if memory is None else memory

    @property
    def allocated(self) -> bool:
        """Whether pieces have addresses."""
        return self._memory is not None

    @property
    def memory(self) -> npt.NDArray[np.uint8]:
        """The whole arena."""
        if self._memory is None:
            raise ValueError("the arena is not allocated yet")
        return self._memory

    @property
    def base(self) -> int:
        """The address of the arena, 0 while it is only planned."""
        return 0 if self._memory is None else int(self._memory.ctypes.data)

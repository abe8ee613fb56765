"""The buffers that a step works in: some shared by all threads, some with a copy for each thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .memory import Arena, Piece
from .operation import Rows

if TYPE_CHECKING:
    import numpy.typing as npt


class Workspace:
    """Named buffers, planned by a first lowering and real in the next one."""

    def __init__(self, threads: int, max_rows: int) -> None:
        self.max_rows = max_rows
        self._threads = threads
        self._shared = Arena("workspace")
        self._private = Arena("workspace of the threads")
        self._pieces: dict[str, Piece] = {}
        self._private_size = 0

    def shared(self, name: str, row_bytes: int, rows: int | None = None) -> Rows:
        """A buffer of `rows` (None: `max_rows`) rows that all threads see."""
        size = row_bytes * (self.max_rows if rows is None else rows)
        return Rows(self._piece(self._shared, f"{name} {row_bytes}", size).address, row_bytes)

    def private(self, name: str, row_bytes: int) -> Rows:
        """A buffer of one row of which every thread has its own."""
        return Rows(self._piece(self._private, f"{name} {row_bytes}", row_bytes).address, row_bytes, self._private_size)

    def words(self, name: str, size: int) -> int:
        """Address of `size` shared bytes."""
        return self._piece(self._shared, name, size).address

    def floats(self, rows: Rows) -> npt.NDArray[np.float32]:
        """A shared buffer of rows as an array, for the host to fill."""
        offset = rows.address - self._shared.base
        bytes_of = self._shared.memory[offset : offset + self.max_rows * rows.stride]
        return bytes_of.view(np.float32).reshape(self.max_rows, -1)

    def allocate(self) -> None:
        """Make the planned buffers real, zeroed."""
        self._private_size = self._private.size
        self._shared.allocate()
        whole = Arena(self._private.purpose)
        whole.take(self._private_size * self._threads)
        whole.allocate()
        self._private.allocate(whole.memory)

    @property
    def size(self) -> int:
        """Bytes of all buffers."""
        return self._shared.size + self._private.size * self._threads

    def _piece(self, arena: Arena, name: str, size: int) -> Piece:
        piece = self._pieces.get(name)
        if piece is None:
            piece = self._pieces[name] = arena.take(size)
        if piece.size != size:
            raise ValueError(f"buffer {name} has {piece.size} bytes, {size} are asked for")
        return piece

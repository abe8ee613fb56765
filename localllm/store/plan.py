"""What a pull will do: the files of a model and the pieces that each is made of."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .transfer import RemoteFile

if TYPE_CHECKING:
    from pathlib import Path

    from .reference import HubReference


@dataclass(frozen=True, slots=True)
class Piece:
    """A remote file (or one already on this computer), or the file `member` inside that archive."""

    origin: RemoteFile | Path
    member: str | None = None
    sha256: str | None = None  # of a local archive, when an index lists it

    @property
    def expected(self) -> str | None:
        """The hash that somebody published for the whole piece."""
        return self.origin.sha256 if isinstance(self.origin, RemoteFile) else self.sha256

    @property
    def address(self) -> str:
        """Where it comes from."""
        return self.origin.url if isinstance(self.origin, RemoteFile) else str(self.origin)

    @property
    def download_bytes(self) -> int | None:
        """Bytes to transfer for this piece; 0 for a local one."""
        return self.origin.size_bytes if isinstance(self.origin, RemoteFile) else 0


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """One file of the model: its pieces in order. Size (bytes) and hash where they are known beforehand."""

    name: str
    pieces: tuple[Piece, ...]
    size_bytes: int | None = None
    sha256: str | None = None

    @property
    def key(self) -> str:
        """Names the lock and the partial folder: equal for pulls that fetch the same content."""
        if self.sha256 is not None:
            return self.sha256
        parts = [f"{piece.address}#{piece.member}" for piece in self.pieces]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class PullPlan:
    """A model to fetch under `name`; `source` is what to show and record, `hash_origin` who published the hashes.

    `hub` is the repository, for explaining refusals.
    """

    name: str
    source: str
    files: tuple[PlannedFile, ...]
    licence: str | None = None
    licence_url: str | None = None
    notes: tuple[str, ...] = ()
    hash_origin: str = "catalogue"
    hub: HubReference | None = None

    @property
    def size_bytes(self) -> int | None:
        """Bytes of all finished files, None if any is unknown."""
        sizes = [file.size_bytes for file in self.files]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    @property
    def download_bytes(self) -> int | None:
        """Bytes to transfer, None if any is unknown."""
        sizes = [piece.download_bytes for file in self.files for piece in file.pieces]
        return None if None in sizes else sum(size for size in sizes if size is not None)

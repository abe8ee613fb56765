"""Opens a GGUF model, one file or split in parts, as a memory map: metadata and tensors without copies."""

from __future__ import annotations

import mmap
import stat
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .cursor import INCOMPLETE, shown, similar
from .errors import GGUFError, TruncatedGGUFError
from .header import Header, TensorEntry, parse_header
from .quants import is_supported
from .split import check_parts, part_paths
from .tensor import Tensor

if TYPE_CHECKING:
    from os import PathLike
    from types import TracebackType

    from .metadata import Metadata


@dataclass(frozen=True, slots=True)
class Part:
    """One file of a model: its path, its bytes (a map, or the head alone) and what its head says."""

    path: Path
    buffer: bytes | mmap.mmap
    size: int
    header: Header

    def release(self) -> None:
        """Let go of the bytes, as far as nothing refers to them."""
        self.header.metadata.close()
        _unmap(self.buffer)


class GGUFFile:
    """An open model. Tensors stay valid after `close`, for as long as something refers to them; metadata does not.

    `entries` is the tensor table as stored (all parts, types unknown to us included); `tensors` is empty when the file
    was opened for its metadata only.
    """

    def __init__(self, parts: tuple[Part, ...], tensors: dict[str, Tensor]) -> None:
        self._parts = parts
        self.tensors = tensors

    @property
    def path(self) -> Path:
        """The file, or the first part of a split model."""
        return self._parts[0].path

    @property
    def paths(self) -> tuple[Path, ...]:
        """All parts, in order."""
        return tuple(part.path for part in self._parts)

    @property
    def magic(self) -> str:
        """GGUF, or PWRI for PowerInfer's files."""
        return self._parts[0].header.magic

    @property
    def version(self) -> int:
        """The version of the format: 2 or 3."""
        return self._parts[0].header.version

    @property
    def metadata(self) -> Metadata:
        """The metadata (of the first part: the others only number themselves)."""
        return self._parts[0].header.metadata

    @property
    def entries(self) -> tuple[TensorEntry, ...]:
        """The tensor table of all parts."""
        return tuple(entry for part in self._parts for entry in part.header.entries)

    @property
    def size_bytes(self) -> int:
        """Bytes of all parts on the disk."""
        return sum(part.size for part in self._parts)

    def tensor(self, name: str) -> Tensor:
        """The tensor of this name; the error names similar ones."""
        found = self.tensors.get(name)
        if found is None:
            hint = similar(name, self.tensors, "tensors")
            raise GGUFError(f"{self.path}: there is no tensor {shown(name)}", hint=hint)
        return found

    def close(self) -> None:
        """Let go of the file. Tensors that are still referred to keep their bytes mapped."""
        self.tensors = {}
        for part in self._parts:
            part.release()

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_gguf(path: str | PathLike[str], *, metadata_only: bool = False) -> GGUFFile:
    """Open a GGUF model by its file, or by any part of a split one (`-00001-of-0000n`).

    Everything in it is checked here, so what is returned can be used without further checks; strings and arrays are
    decoded when asked for. With `metadata_only`, tensors of an unknown type and missing data are no error. Raises
    GGUFError with file, byte and field.
    """
    with ExitStack() as opened:
        first = _open_part(Path(path))
        opened.callback(first.release)
        parts = []
        for part_path in part_paths(first.path, first.header.metadata):
            part = first if part_path == first.path else _open_part(part_path)
            opened.callback(part.release)
            parts.append(part)
        check_parts([(part.path, part.header) for part in parts])
        tensors: dict[str, Tensor] = {}
        if not metadata_only:
            for part in parts:
                tensors.update(_bind(part))
        opened.pop_all()
    return GGUFFile(tuple(parts), tensors)


def _open_part(path: Path) -> Part:
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for ever
            what = "is a folder" if path.is_dir() else "is not a regular file"
            raise GGUFError(f"{path}: {what}", hint="Give the path of a .gguf file.")
        with path.open("rb") as file:
            size = file.seek(0, 2)
            buffer: bytes | mmap.mmap = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL character
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise GGUFError(f"{shown(str(path))}: cannot be opened: {reason}") from None
    try:
        return Part(path, buffer, size, parse_header(buffer, str(path)))
    except GGUFError:
        _unmap(buffer)
        raise


def _unmap(buffer: bytes | mmap.mmap) -> None:
    if isinstance(buffer, mmap.mmap):
        with suppress(BufferError):  # a tensor is still in use: the map goes with the last one
            buffer.close()


def _bind(part: Part) -> dict[str, Tensor]:
    """The tensors of one part as views of its map: known types, inside the file, none over another."""
    header, size = part.header, part.size
    everything = np.frombuffer(part.buffer, np.uint8)
    tensors: dict[str, Tensor] = {}
    previous, free = "", header.data_start
    for entry in sorted(header.entries, key=lambda entry: entry.offset):
        quant_type, row_bytes, nbytes = entry.quant_type, entry.row_bytes, entry.nbytes
        if quant_type is None or row_bytes is None or nbytes is None or not is_supported(quant_type):
            problem = f"uses quant type {entry.type_number} ({entry.type_label}), not supported"
            hint = "Get the model in another quantisation, such as Q4_K_M; `localllm show` still prints its metadata."
            raise GGUFError(f"{part.path}: tensor {shown(entry.name)} {problem}", hint=hint)
        start = header.data_start + entry.offset
        if start < free:
            raise GGUFError(f"{part.path}: byte {start}: tensors {shown(previous)} and {shown(entry.name)} overlap")
        previous, free = entry.name, start + nbytes
        if free > size:
            raise TruncatedGGUFError(
                f"{part.path}: byte {start}: tensor {shown(entry.name)} ends at {free}, the file at {size}",
                needed_bytes=free,
                hint=INCOMPLETE,
            )
        data = everything[start:free].reshape(*entry.shape[:-1], row_bytes)
        tensors[entry.name] = Tensor(entry.name, quant_type, entry.shape, data)
    return {entry.name: tensors[entry.name] for entry in header.entries}

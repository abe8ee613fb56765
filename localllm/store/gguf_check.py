"""Whether a fetched file is a whole GGUF: header, metadata and tensor table readable, all tensor data there."""

from __future__ import annotations

import mmap
from contextlib import closing
from typing import TYPE_CHECKING

from localllm.gguf_io import GGUFError, TruncatedGGUFError, parse_header

if TYPE_CHECKING:
    from pathlib import Path


def check_complete(path: Path, shown_name: str) -> int:
    """Check the file at `path`; the number of files its model is split in (1: not split). Raises GGUFError.

    Tensor types unknown to us are no damage: newer files may be stored, and loading them says what is missing.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            if size == 0:
                raise GGUFError(f"{shown_name}: it is empty")
            buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise GGUFError(f"{shown_name}: cannot be read: {error.strerror}") from error
    with closing(buffer):
        header = parse_header(buffer, shown_name)
        try:
            for entry in header.entries:
                end = header.data_start + entry.offset + (entry.nbytes or 0)
                if end > size:
                    raise TruncatedGGUFError(
                        f"{shown_name}: the data of tensor {entry.name[:80]!r} ends at byte {end}, the file at {size}",
                        needed_bytes=end,
                    )
            return max(1, header.metadata.integer("split.count", 1))
        finally:
            header.metadata.close()

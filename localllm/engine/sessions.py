"""Files of saved sessions: written whole or not at all, and a fingerprint that ties them to a model file."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from localllm.errors import SessionError

if TYPE_CHECKING:
    from collections.abc import Iterable

SAMPLES, SAMPLE_BYTES = 256, 4096


def write_session(path: str | os.PathLike[str], pieces: Iterable[bytes]) -> None:
    """Replace the file at once, when all is written; SessionError says why it could not be."""
    target = Path(path)
    try:
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False) as file:
            try:
                file.writelines(pieces)
                file.flush()
                os.fsync(file.fileno())
                file.close()
                Path(file.name).replace(target)
            except BaseException:
                Path(file.name).unlink(missing_ok=True)
                raise
    except OSError as error:
        raise SessionError(f"the session cannot be saved to {target}: {error.strerror or error}") from error


def read_session(path: str | os.PathLike[str]) -> bytes:
    """The file's bytes; SessionError says why they cannot be read."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise SessionError(f"the saved session {path} cannot be read: {error.strerror or error}") from error


def model_fingerprint(path: str | os.PathLike[str]) -> str:
    """A hash of a model file's size and of samples all over it: quick, and different for different weights."""
    digest = hashlib.blake2b(digest_size=16)
    with Path(path).open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        digest.update(str(size).encode())
        for index in range(SAMPLES):
            file.seek(index * max(0, size - SAMPLE_BYTES) // (SAMPLES - 1))
            digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()

"""Where the repacked weights of a large model are kept between starts."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

from .engine.sessions import model_fingerprint
from .paths import Paths

if TYPE_CHECKING:
    from pathlib import Path

    from .gguf_io import GGUFFile


_SMALLEST = 48 << 20  # bytes of a model; smaller ones are repacked at every start


def repacked_file(file: GGUFFile) -> Path | None:
    """A file of the cache folder whose name changes with the model's files: where they lie, size, time, samples.

    None for a model that is too small to be kept.
    """
    if sum(path.stat().st_size for path in file.paths) < _SMALLEST:
        return None
    digest = hashlib.sha256()
    for path in file.paths:
        facts = path.stat()
        digest.update(os.fsencode(path.resolve()))
        digest.update(f"\n{facts.st_size} {facts.st_mtime_ns} {model_fingerprint(path)}\n".encode())
    return Paths.from_environment().repacked / f"{digest.hexdigest()[:32]}.tiles"

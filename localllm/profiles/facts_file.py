"""What was measured of a model, in a file beside it: a zip of plain arrays (.npz, nothing pickled), tied to it."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from localllm.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import numpy.typing as npt

    Arrays = Mapping[str, npt.NDArray[Any]]

_SAMPLES, _SAMPLE_BYTES = 64, 1 << 14

_Facts = TypeVar("_Facts")


@dataclass(frozen=True, slots=True)
class FactsForm:
    """A kind of such files: what people call it, its version, the most bytes it may have, how to make it anew."""

    name: str
    version: int
    largest: int
    hint: str

    def read(self, path: Path, model: Path, parse: Callable[[Any, Arrays], _Facts]) -> _Facts:
        """What `parse` makes of the head and the arrays of a file.

        Raises ConfigurationError when the file is damaged or none, of another version, or of another model.
        """
        if not path.is_file():  # to open a pipe would wait for its other end
            raise self._wrong(path, "is not a file")
        try:
            if path.stat().st_size > self.largest:
                raise ValueError("too large")
            with zipfile.ZipFile(path) as archive:
                if sum(info.file_size for info in archive.infolist()) > self.largest:
                    raise ValueError("too large")
            with np.load(path, allow_pickle=False) as arrays:
                head = json.loads(arrays["head"].tobytes())
                if head["version"] != self.version:
                    raise ValueError("another version")
                facts, of = parse(head, arrays), str(head["model"])
        except Exception as error:  # zip, its compressors, array headers and JSON: each fails in kinds of its own
            raise self._wrong(path, f"is damaged ({type(error).__name__})") from error
        if of != fingerprint(model):
            raise self._wrong(path, f"is of another file than {model.name}")
        return facts

    def _wrong(self, path: Path, what: str) -> ConfigurationError:
        return ConfigurationError(f"the {self.name} {path} {what}", hint=self.hint)


def write_facts(path: Path, head: Mapping[str, Any], arrays: Arrays) -> None:
    """Write a file atomically; `head` has its "version" and "model". Raises DownloadError if the disk refuses."""
    from localllm.store.disk import write_atomically

    buffer = io.BytesIO()
    np.savez(buffer, head=np.frombuffer(json.dumps(head).encode(), np.uint8), **arrays)  # type: ignore[arg-type]
    write_atomically(path, buffer.getvalue())


def fingerprint(path: Path) -> str:
    """The identity of a model file: its size, both ends and samples between them; quick for any size."""
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        digest.update(file.read(1 << 20))
        for index in range(_SAMPLES + 1):
            file.seek(max(0, (size - _SAMPLE_BYTES) * index // _SAMPLES))
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()

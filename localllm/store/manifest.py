"""What the store knows about a pulled model: a small JSON file beside the blobs."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from localllm.errors import StoreError

from .names import check_name, file_key, safe_file_name

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of a model: its own name, and the blob that holds its bytes. `verified_by` says what the hash came from.

    `verified_by` is "catalogue", "url", "index", "hub", or "first pull" when nobody published a hash.
    """

    name: str
    sha256: str
    size_bytes: int
    verified_by: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """A model in the store. `pulled_at` is an ISO 8601 time in UTC."""

    name: str
    source: str
    files: tuple[StoredFile, ...]
    pulled_at: str
    licence: str | None = None
    licence_url: str | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size_bytes for file in self.files)

    def to_json(self) -> bytes:
        """The content of its file."""
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=1).encode() + b"\n"


def manifest_file_name(name: str) -> str:
    """The file that a model's manifest is stored in."""
    return f"{file_key(name)}.json"


def read_manifest(path: Path) -> Manifest:
    """Read and check a manifest. StoreError when it is damaged."""
    try:
        fields = json.loads(path.read_bytes())
        if fields.pop("schema") != SCHEMA:
            raise ValueError("unknown schema")
        files = tuple(_stored_file(file) for file in fields.pop("files"))
        manifest = Manifest(files=files, **fields)
        texts = (manifest.source, manifest.pulled_at, manifest.licence or "", manifest.licence_url or "")
        if (
            not files
            or not all(isinstance(text, str) for text in texts)
            or file_key(check_name(manifest.name)) != path.stem
        ):
            raise ValueError("wrong fields")
    except Exception as error:
        if isinstance(error, OSError):
            raise StoreError(f"{path}: cannot be read: {error.strerror}") from error
        raise StoreError(
            f"{path}: this manifest is damaged", hint="delete the file and pull the model again"
        ) from error
    return manifest


def _stored_file(fields: dict[str, Any]) -> StoredFile:
    file = StoredFile(**fields)
    hexadecimal = len(file.sha256) == 64 and set(file.sha256) <= set("0123456789abcdef")
    if not hexadecimal or type(file.size_bytes) is not int or safe_file_name(file.name) != file.name:
        raise ValueError("wrong file fields")
    return file

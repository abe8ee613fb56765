"""Model names: what they may contain, and the file name that a name is stored under (it cannot leave the folder)."""

from __future__ import annotations

import hashlib
import re
from urllib.parse import quote

from localllm.errors import ConfigurationError

from .text import printable

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+@/:=,-]{0,199}")
_TAGGED = re.compile(r"[a-z0-9][a-z0-9._-]*(:[a-z0-9][a-z0-9._-]*)?")


def check_name(name: str) -> str:
    """`name` if it may name a model in the store, else ConfigurationError."""
    if _NAME.fullmatch(name) is None or ".." in name:
        raise ConfigurationError(
            f"{printable(name, 80)!r} cannot be a model's name",
            hint="use letters, digits and . _ - + @ / : up to 200 characters, for example my-model:7b",
        )
    return name


def check_catalogue_name(name: str) -> str:
    """`name` if it has the form family:tag in lower case, else ConfigurationError."""
    if _TAGGED.fullmatch(name) is None or len(name) > 100 or ".." in name:
        raise ConfigurationError(
            f"{printable(name, 80)!r} cannot be a catalogue name", hint="use lower case, for example my-model:7b-q4"
        )
    return name


def file_key(name: str) -> str:
    """A file name for `name`: one per name without regard to case, no separators, at most 150 characters."""
    data = name.lower().encode("utf-8", "surrogatepass")
    key = quote(data, safe="")
    if len(key) > 150:
        key = f"{key[:100]}-{hashlib.sha256(data).hexdigest()[:32]}"
    return key


def safe_file_name(name: str) -> str:
    """The last part of a path or URL as a harmless file name."""
    last = re.split(r"[/\\]", name)[-1]
    kept = re.sub(r"[^A-Za-z0-9._+@-]", "_", last).lstrip(".")
    return kept[-150:] or "model.gguf"

"""One entry of the catalogue: its keys, their types, and errors that name the key."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from localllm.errors import ConfigurationError

from .names import check_catalogue_name
from .reference import HubReference, PackageReference, Reference, UrlReference, parse_reference
from .text import nearest_hint, printable

if TYPE_CHECKING:
    from pathlib import Path

Scalar = str | int | float | bool
_SHA256 = re.compile(r"[0-9a-f]{64}")
_OPTION_TYPES: dict[str, dict[str, tuple[type, ...]]] = {
    "sampling": {
        "temperature": (int, float),
        "top_k": (int,),
        "top_p": (int, float),
        "min_p": (int, float),
        "typical_p": (int, float),
        "repetition_penalty": (int, float),
        "presence_penalty": (int, float),
        "frequency_penalty": (int, float),
        "max_tokens": (int,),
    },
    "placement": {
        "device": (str,),
        "mode": (str,),
        "vram": (str,),
        "kv": (str,),
        "threads": (int,),
        "window": (int,),
        "sinks": (int,),
    },
}


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """What the catalogue knows about a model. `size_bytes` is of the finished file, and binding
    only beside `sha256`; all but `source` may be unknown.

    `members` are files inside the wheels of a `pypi:` source. `gated`: the hub asks to accept a licence first.
    `template` (Jinja text), `context`, `sampling` and `placement` are defaults for running it.
    """

    name: str
    source: Reference
    members: tuple[str, ...] = ()
    sha256: str | None = None
    size_bytes: int | None = None
    licence: str | None = None
    licence_url: str | None = None
    description: str | None = None
    parameters: str | None = None
    quant: str | None = None
    gated: bool = False
    sparse: bool = False
    aliases: tuple[str, ...] = ()
    context: int | None = None
    template: str | None = None
    sampling: Mapping[str, Scalar] = field(default_factory=dict)
    placement: Mapping[str, Scalar] = field(default_factory=dict)

    @property
    def pinned(self) -> tuple[int | None, str | None]:
        """Size and hash that a fetched file must have; (None, None) without a hash."""
        return (self.size_bytes, self.sha256) if self.sha256 is not None else (None, None)

    @property
    def searchable(self) -> str:
        """Lower-case text that `search` looks in."""
        parts = (self.name, self.description, self.licence, self.parameters, self.quant, str(self.source))
        return " ".join([*(part for part in parts if part is not None), *self.aliases]).lower()


def entry_from_table(name: str, table: dict[str, Any], origin: Path) -> CatalogueEntry:
    """Check a table of the catalogue. ConfigurationError names the file, the entry and the key."""
    reader = _TableReader(name, table, origin)
    try:
        check_catalogue_name(name)
    except ConfigurationError as error:
        raise ConfigurationError(f"{origin}: {error.message}", hint=error.hint) from error
    known = [item.name for item in fields(CatalogueEntry) if item.name != "name"]
    for key in table:
        if key not in known:
            raise reader.error(key, "unknown key", nearest_hint(key, known))
    source = _read_source(reader)
    entry = CatalogueEntry(
        name=name,
        source=source,
        members=reader.texts("members"),
        sha256=reader.sha256("sha256", table.get("sha256")),
        size_bytes=reader.positive("size_bytes"),
        licence=reader.text("licence"),
        licence_url=reader.text("licence_url"),
        description=reader.text("description"),
        parameters=reader.text("parameters"),
        quant=reader.text("quant"),
        gated=reader.flag("gated"),
        sparse=reader.flag("sparse"),
        aliases=tuple(check_catalogue_name(alias) for alias in reader.texts("aliases")),
        context=reader.positive("context"),
        template=reader.text("template", 1 << 20),
        sampling=reader.options("sampling"),
        placement=reader.options("placement"),
    )
    if isinstance(source, PackageReference) and entry.members and len(entry.members) != len(source.packages):
        raise reader.error("members", f"{len(source.packages)} packages need as many members")
    return entry


def _read_source(reader: _TableReader) -> Reference:
    text = reader.text("source")
    if text is None:
        raise reader.error("source", "missing", 'for example source = "hf:OWNER/REPO/FILE.gguf"')
    try:
        reference = parse_reference(text)
    except ConfigurationError as error:
        raise reader.error("source", error.message, error.hint or "") from error
    if not isinstance(reference, HubReference | UrlReference | PackageReference):
        raise reader.error("source", f"{printable(text, 120)!r} is no source", "use hf:…, pypi:… or https://…")
    return reference


class _TableReader:
    """Typed reads of one table."""

    def __init__(self, name: str, table: dict[str, Any], origin: Path) -> None:
        self._name = name
        self._table = table
        self._origin = origin

    def error(self, key: str, problem: str, hint: str = "") -> ConfigurationError:
        where = f"{self._origin}: models.{printable(self._name, 60)}.{printable(key, 60)}"
        return ConfigurationError(f"{where}: {problem}", hint=hint or None)

    def text(self, key: str, limit: int = 500) -> str | None:
        value = self._table.get(key)
        if value is not None and (not isinstance(value, str) or not value or len(value) > limit):
            raise self.error(key, f"must be a text of 1 to {limit} characters")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        value = self._table.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
            raise self.error(key, "must be a list of texts")
        return tuple(value)

    def positive(self, key: str) -> int | None:
        value = self._table.get(key)
        if value is not None and (type(value) is not int or value <= 0):
            raise self.error(key, "must be a whole number above 0")
        return value

    def flag(self, key: str) -> bool:
        value = self._table.get(key, False)
        if not isinstance(value, bool):
            raise self.error(key, "must be true or false")
        return value

    def sha256(self, key: str, value: object) -> str | None:
        if value is None:
            return None
        if not isinstance(value, str) or _SHA256.fullmatch(value.lower()) is None:
            raise self.error(key, "must be 64 hexadecimal digits")
        return value.lower()

    def options(self, key: str) -> dict[str, Scalar]:
        value = self._table.get(key, {})
        types = _OPTION_TYPES[key]
        if not isinstance(value, dict):
            raise self.error(key, "must be a table")
        for option, setting in value.items():
            if option not in types:
                raise self.error(f"{key}.{option}", "unknown key", nearest_hint(option, types))
            if isinstance(setting, bool) or not isinstance(setting, types[option]):
                names = " or ".join({str: "a text", int: "a whole number", float: "a number"}[t] for t in types[option])
                raise self.error(f"{key}.{option}", f"must be {names}")
        return dict(value)

"""The catalogue: short model names and where their files come from, as data that cannot run code.

The shipped `models.toml` is merged with the user's (config folder) by name, key by key.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localllm.errors import ConfigurationError

from .entry import CatalogueEntry, entry_from_table
from .text import nearest_hint, printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from localllm.paths import Paths

SCHEMA = 1
MAX_CATALOGUE_BYTES = 4 << 20
_TOP_LEVEL = ("schema", "default", "models")


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Entries by name, in the file's order; `default` is what a bare `localllm` runs."""

    entries: Mapping[str, CatalogueEntry]
    default: str | None = None
    aliases: Mapping[str, str] = field(default_factory=dict)

    def __iter__(self) -> Iterator[CatalogueEntry]:
        return iter(self.entries.values())

    def find(self, name: str) -> CatalogueEntry | None:
        """The entry of a name, of an alias, or of a family without tag (its first entry); case does not matter."""
        lowered = name.lower()
        found = self.entries.get(self.aliases.get(lowered, lowered))
        if found is None and ":" not in lowered:
            found = next((entry for key, entry in self.entries.items() if key.partition(":")[0] == lowered), None)
        return found

    def search(self, text: str) -> list[CatalogueEntry]:
        """Entries that contain every word of `text` in their name, description, licence or source."""
        words = text.lower().split()
        return [entry for entry in self if all(word in entry.searchable for word in words)]


def load_catalogue(paths: Paths) -> Catalogue:
    """The shipped catalogue with the user's overrides. ConfigurationError names file, entry and key."""
    shipped = shipped_catalogue_file()
    tables = [(shipped, read_tables(shipped))]
    if paths.catalogue_file.exists():
        tables.append((paths.catalogue_file, read_tables(paths.catalogue_file)))
    return merge(tables)


def shipped_catalogue_file() -> Path:
    """`models.toml` of this installation: inside the package, or beside it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    installed = package / "models.toml"
    return installed if installed.exists() else package.parent / "models.toml"


def read_tables(path: Path) -> dict[str, Any]:
    """The TOML of a catalogue file, its top level checked."""
    try:
        if path.stat().st_size > MAX_CATALOGUE_BYTES:
            raise ConfigurationError(f"{path}: longer than {MAX_CATALOGUE_BYTES >> 20} MiB")
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigurationError(f"{path}: cannot be read: {printable(str(error))}") from error
    for key in tables:
        if key not in _TOP_LEVEL:
            raise ConfigurationError(
                f"{path}: unknown key {printable(key, 60)!r}",
                hint=nearest_hint(key, _TOP_LEVEL) or 'entries stand under [models."family:tag"]',
            )
    if tables.get("schema", SCHEMA) != SCHEMA:
        raise ConfigurationError(f"{path}: schema {tables['schema']!r} is not known; this localllm reads {SCHEMA}")
    models = tables.get("models", {})
    if not isinstance(models, dict) or not all(isinstance(table, dict) for table in models.values()):
        raise ConfigurationError(f'{path}: `models` must hold tables, one a model: [models."family:tag"]')
    if not isinstance(tables.get("default", ""), str):
        raise ConfigurationError(f"{path}: `default` must be a model's name")
    return tables


def merge(files: list[tuple[Path, dict[str, Any]]]) -> Catalogue:
    """One catalogue from several files; later files win, key by key."""
    merged: dict[str, dict[str, Any]] = {}
    origins: dict[str, Path] = {}
    default: str | None = None
    for path, tables in files:
        default = tables.get("default", default)
        for name, table in tables.get("models", {}).items():
            origins[name] = path
            mine = merged.setdefault(name, {})
            for key, value in table.items():
                mine[key] = (
                    {**mine[key], **value} if isinstance(value, dict) and isinstance(mine.get(key), dict) else value
                )
    entries = {name: entry_from_table(name, table, origins[name]) for name, table in merged.items()}
    aliases: dict[str, str] = {}
    for name, entry in entries.items():
        for alias in entry.aliases:
            if alias in entries or aliases.get(alias, name) != name:
                raise ConfigurationError(f"{origins[name]}: models.{name}: the alias {alias!r} names another model too")
            aliases[alias] = name
    if default is not None and default not in entries and default not in aliases:
        raise ConfigurationError(
            f"the catalogue's default model {printable(default, 60)!r} has no entry",
            hint=nearest_hint(default, entries),
        )
    return Catalogue(entries, default, aliases)

"""Changing the user's catalogue: comments and order stay, and nothing wrong is ever written."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from localllm.errors import ConfigurationError

from .catalogue import merge, read_tables, shipped_catalogue_file
from .disk import write_atomically
from .names import check_catalogue_name
from .text import nearest_hint, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from localllm.paths import Paths

    from .entry import CatalogueEntry

_HEADER = "# Your own models, and changes to those that localllm knows: merged over the shipped catalogue by name.\n\n"


def set_entry(paths: Paths, name: str, values: Mapping[str, object], *, create: bool) -> CatalogueEntry:
    """Set keys of an entry in the user's catalogue (None removes a key; `sampling.temperature` reaches into a table).

    With `create` the entry must be new; otherwise it must exist, here or in the shipped catalogue. Raises
    ConfigurationError when the result would not be a valid catalogue; the file is unchanged then.
    """
    check_catalogue_name(name)
    shipped = merge([(shipped_catalogue_file(), read_tables(shipped_catalogue_file()))])

    def change(models: Any) -> None:
        known = [*shipped.entries, *models]
        if create and name in known:
            raise ConfigurationError(f"there is already a model {name}", hint=f"change it: localllm models edit {name}")
        if not create and name not in known:
            raise ConfigurationError(
                f"there is no model {printable(name, 60)!r}", hint=nearest_hint(name, known) or None
            )
        if name not in models:
            models[name] = tomlkit.table()
        for key, value in values.items():
            _assign(models[name], key, value)

    return _rewrite(paths, change)[name]


def remove_entry(paths: Paths, name: str) -> None:
    """Remove an entry from the user's catalogue; a shipped one keeps its shipped values."""

    def change(models: Any) -> None:
        if name not in models:
            raise ConfigurationError(
                f"your catalogue has no model {printable(name, 60)!r}", hint=nearest_hint(name, list(models)) or None
            )
        del models[name]

    _rewrite(paths, change)


def parse_value(text: str) -> object:
    """A value as TOML spells it; anything else is a text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _assign(table: Any, key: str, value: object) -> None:
    first, dot, rest = key.partition(".")
    if dot:
        if first not in table:
            table[first] = tomlkit.inline_table()
        if not isinstance(table[first], dict):
            raise ConfigurationError(f"{printable(first, 60)} is no table")
        _assign(table[first], rest, value)
    elif value is None:
        table.pop(first, None)
    else:
        table[first] = value


def _rewrite(paths: Paths, change: Callable[[Any], None]) -> Mapping[str, CatalogueEntry]:
    path = paths.catalogue_file
    shipped = shipped_catalogue_file()
    if path.exists():
        read_tables(path)  # the errors of a file that is wrong already
        text = path.read_text(encoding="utf-8")
    else:
        text = _HEADER
    try:
        document = tomlkit.parse(text)
        if "models" not in document:
            document["models"] = tomlkit.table(is_super_table=True)
        change(document["models"])
        content = tomlkit.dumps(document)
    except TOMLKitError as error:
        raise ConfigurationError(f"{path}: cannot be changed: {printable(str(error))}") from error
    merged = merge([(shipped, read_tables(shipped)), (path, tomllib.loads(content))])
    write_atomically(path, content.encode())
    return merged.entries

"""Which package index pip would use: its environment variables and configuration files, read as pip documents them.

https://pip.pypa.io/en/stable/topics/configuration/
"""

from __future__ import annotations

import configparser
import importlib
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from localllm.errors import ConfigurationError

from ..text import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

_SECTIONS = ("global", "download", "install")
_KEYS = ("index-url", "extra-index-url", "find-links", "no-index")


@dataclass(frozen=True, slots=True)
class PipConfiguration:
    """Indexes (Simple API) in the order they are asked, and links: folders or pages that list files."""

    indexes: tuple[str, ...]
    links: tuple[str, ...] = ()

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> PipConfiguration:
        """What pip's configuration of this Python says, rising: machine, user, this environment, variables."""
        variables = os.environ if environment is None else environment
        values: dict[str, str] = {}
        for path in _configuration_files(variables):
            values.update(_read_file(path))
        for key in _KEYS:
            variable = variables.get(f"PIP_{key.upper().replace('-', '_')}")
            if variable:
                values[key] = variable
        links = tuple(values.get("find-links", "").split())
        if values.get("no-index", "").lower() in ("1", "true", "yes", "on"):
            return cls((), links)
        main = values.get("index-url", "").strip() or default_index()
        return cls((main, *values.get("extra-index-url", "").split()), links)


def default_index() -> str:
    """The index that this environment's pip asks when nothing is configured; it alone knows the public one."""
    try:
        index = importlib.import_module("pip._internal.models.index").PyPI
        return f"{index.simple_url.rstrip('/')}/"
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            "no package index is configured, and pip is not here to ask", hint="set PIP_INDEX_URL to an index"
        ) from error


def _configuration_files(variables: Mapping[str, str]) -> list[Path]:
    extra = variables.get("PIP_CONFIG_FILE")
    if extra == os.devnull:
        return []
    home = Path(variables.get("HOME") or variables.get("USERPROFILE") or Path.home())
    if os.name == "nt":
        name = "pip.ini"
        machine = [Path(variables.get("PROGRAMDATA", r"C:\ProgramData")) / "pip" / name]
        user = [home / "pip" / name, Path(variables.get("APPDATA", home / "AppData" / "Roaming")) / "pip" / name]
    else:
        name = "pip.conf"
        shared = variables.get("XDG_CONFIG_DIRS") or "/etc/xdg"
        machine = [Path(folder) / "pip" / name for folder in reversed(shared.split(":")) if folder]
        machine.append(Path("/etc") / name)
        own = Path(variables.get("XDG_CONFIG_HOME") or home / ".config")
        user = [home / ".pip" / name, own / "pip" / name]
        if sys.platform == "darwin":
            machine.insert(0, Path("/Library/Application Support/pip") / name)
            user.append(home / "Library" / "Application Support" / "pip" / name)
    files = [*machine, *user, Path(sys.prefix) / name]
    return [*files, Path(extra)] if extra else files


def _read_file(path: Path) -> dict[str, str]:
    parser = configparser.RawConfigParser()
    try:
        with path.open(encoding="utf-8", errors="surrogateescape") as file:
            parser.read_file(file)
    except (FileNotFoundError, NotADirectoryError, PermissionError, IsADirectoryError):
        return {}
    except configparser.Error as error:
        raise ConfigurationError(f"pip's configuration {path} cannot be read: {printable(str(error))}") from error
    values: dict[str, str] = {}
    for section in _SECTIONS:
        if parser.has_section(section):
            for key, value in parser.items(section):
                normal = re.sub("_", "-", key.lower())
                if normal in _KEYS and value.strip():
                    values[normal] = value.strip()
    return values

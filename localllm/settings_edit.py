"""Changing settings.toml: comments and order stay, and nothing wrong is ever written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tomlkit
from tomlkit.exceptions import TOMLKitError

from localllm.errors import ConfigurationError
from localllm.settings import KINDS, check_key, read_settings_file
from localllm.settings_version import VERSION
from localllm.store.disk import write_atomically

if TYPE_CHECKING:
    from localllm.paths import Paths

_HEADER = f"# localllm's settings; `localllm config show` explains each one.\nversion = {VERSION}\n"


def set_setting(paths: Paths, name: str, text: str | None) -> object:
    """Set `name` to what `text` says (None: remove it) and return the checked value. Raises ConfigurationError."""
    path = paths.settings_file
    check_key(name, "config set")
    read_settings_file(path)
    value: object = None
    if text is not None:
        try:
            value = KINDS[name].parse(text)
        except ValueError as error:
            raise ConfigurationError(f"{name}: {error}") from error
    try:
        document = tomlkit.parse(path.read_text(encoding="utf-8") if path.exists() else _HEADER)
        if value is None:
            document.pop(name, None)
        else:
            document[name] = value
        content = tomlkit.dumps(document)
    except (TOMLKitError, OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: cannot be changed: {error}") from error
    write_atomically(path, content.encode())
    if KINDS[name].secret:
        path.chmod(0o600)
    return value

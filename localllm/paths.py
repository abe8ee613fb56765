"""Where localllm keeps its files: settings, models and caches, by the platform's conventions."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

HOME_VARIABLE = "LOCALLLM_HOME"
CACHE_VARIABLE = "LOCALLLM_CACHE_DIR"


def expand_user(text: str) -> Path:
    """A path with a leading ~ or ~name replaced; one of an unknown user stays as it is."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        return Path(text)


@dataclass(frozen=True, slots=True)
class Paths:
    """Three folders: `config` (settings.toml, models.toml), `data` (the model store, chats), `cache` (can be deleted).

    They need not exist; whoever writes creates them.
    """

    config: Path
    data: Path
    cache: Path

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Paths:
        """The platform's folders, or LOCALLLM_HOME for everything; LOCALLLM_CACHE_DIR moves the cache alone."""
        variables = os.environ if environment is None else environment
        home, cache = variables.get(HOME_VARIABLE), variables.get(CACHE_VARIABLE)
        own_cache = expand_user(cache).absolute() if cache else None
        if home:
            root = expand_user(home).absolute()
            return cls(config=root, data=root, cache=own_cache or root / "cache")
        from platformdirs import PlatformDirs

        folders = PlatformDirs("localllm", appauthor=False)
        return cls(folders.user_config_path, folders.user_data_path, own_cache or folders.user_cache_path)

    @property
    def settings_file(self) -> Path:
        """The user's settings."""
        return self.config / "settings.toml"

    @property
    def catalogue_file(self) -> Path:
        """The user's own catalogue entries and overrides."""
        return self.config / "models.toml"

    @property
    def models(self) -> Path:
        """The model store."""
        return self.data / "models"

    @property
    def chats(self) -> Path:
        """The database of conversations."""
        return self.data / "chats.sqlite3"

    @property
    def repacked(self) -> Path:
        """Weights rearranged for this CPU; safe to delete, made again at the next load."""
        return self.cache / "repacked"

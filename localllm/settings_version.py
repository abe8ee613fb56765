"""Versions of settings.toml: an older file is read as if it had been written today, a newer one is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from localllm.errors import ConfigurationError

Step = Callable[[dict[str, Any]], dict[str, Any]]

# What renames or changes a setting adds a step: the one at place N makes a table of version N + 2 out of N + 1. Files
# are never rewritten by reading them, so that an older localllm beside this one still understands its own.
STEPS: tuple[Step, ...] = ()
VERSION = len(STEPS) + 1


def current(table: dict[str, Any], where: str, steps: tuple[Step, ...] = STEPS) -> dict[str, Any]:
    """The table as of today, without its `version` (1 where none is given). ConfigurationError for a newer one."""
    version = table.pop("version", 1)
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise ConfigurationError(f"{where}: version = {version!r} must be a whole number from 1 on")
    if version > len(steps) + 1:
        raise ConfigurationError(
            f"{where}: version {version} was written by a newer localllm; this one knows {len(steps) + 1}",
            hint="update localllm, or move the file away",
        )
    for step in steps[version - 1 :]:
        table = step(table)
    return table

"""Settings of older versions are read as of today; those of newer ones are refused with a word on what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from localllm.errors import ConfigurationError
from localllm.paths import Paths
from localllm.settings import Settings
from localllm.settings_edit import set_setting
from localllm.settings_version import VERSION, current


def rename(table: dict[str, Any]) -> dict[str, Any]:
    return {{"cores": "threads"}.get(name, name): value for name, value in table.items()}


def double(table: dict[str, Any]) -> dict[str, Any]:
    return {name: 2 * value for name, value in table.items()}


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({"cores": 2}, {"threads": 4}),
        ({"version": 1, "cores": 2}, {"threads": 4}),
        ({"version": 2, "threads": 2}, {"threads": 4}),
        ({"version": 3, "threads": 2}, {"threads": 2}),
    ],
)
def test_each_step_between_then_and_now_is_taken(table: dict[str, Any], expected: dict[str, Any]) -> None:
    assert current(table, "here", (rename, double)) == expected


@pytest.mark.parametrize("version", [0, -1, True, "1", 1.5])
def test_what_is_no_version_is_named(version: object) -> None:
    with pytest.raises(ConfigurationError, match="here: version ="):
        current({"version": version}, "here")


def test_a_newer_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    paths = Paths(tmp_path, tmp_path, tmp_path)
    text = f"version = {VERSION + 1}\nthreads = 3\n"
    paths.settings_file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError, match="newer localllm"):
        Settings.load(paths=paths, environment={})
    with pytest.raises(ConfigurationError, match="newer localllm"):
        set_setting(paths, "threads", "4")
    assert paths.settings_file.read_text(encoding="utf-8") == text


def test_a_new_file_says_its_version(tmp_path: Path) -> None:
    paths = Paths(tmp_path, tmp_path, tmp_path)
    set_setting(paths, "threads", "4")
    assert f"\nversion = {VERSION}\n" in paths.settings_file.read_text(encoding="utf-8")
    assert Settings.load(paths=paths, environment={}).threads == 4

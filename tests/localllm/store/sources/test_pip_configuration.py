"""The index is the one pip uses: files in rising order, then variables."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from localllm.errors import ConfigurationError
from localllm.store.sources.pip_configuration import PipConfiguration, default_index


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """An environment whose configuration files are all below one folder."""
    for name in ("config", "shared"):
        (tmp_path / name / "pip").mkdir(parents=True)
    return {
        "HOME": str(tmp_path / "home"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "XDG_CONFIG_DIRS": str(tmp_path / "shared"),
    }


def write(environment: dict[str, str], variable: str, text: str) -> None:
    (Path(environment[variable]) / "pip" / "pip.conf").write_text(text)


@pytest.mark.skipif(os.name == "nt", reason="the folders differ there")
def test_user_beats_machine_and_variables_beat_both(home: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.prefix", home["HOME"])
    write(
        home,
        "XDG_CONFIG_DIRS",
        "[global]\nindex-url = https://machine/simple\nextra-index-url = https://m1 https://m2\n",
    )
    write(home, "XDG_CONFIG_HOME", "[global]\nindex_url = https://user/simple\n[download]\nfind-links =\n  /a\n  /b\n")
    found = PipConfiguration.from_environment(home)
    assert found.indexes == ("https://user/simple", "https://m1", "https://m2")
    assert found.links == ("/a", "/b")
    found = PipConfiguration.from_environment(
        {**home, "PIP_INDEX_URL": "https://v/simple", "PIP_EXTRA_INDEX_URL": "x y"}
    )
    assert found.indexes == ("https://v/simple", "x", "y")


def test_nothing_configured_means_the_public_index() -> None:
    assert PipConfiguration.from_environment({"PIP_CONFIG_FILE": os.devnull}) == PipConfiguration((default_index(),))


def test_no_index_leaves_the_links(tmp_path: Path) -> None:
    environment = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)}
    assert PipConfiguration.from_environment(environment) == PipConfiguration((), (str(tmp_path),))


def test_a_file_named_by_a_variable_comes_last(home: dict[str, str], tmp_path: Path) -> None:
    write(home, "XDG_CONFIG_HOME", "[global]\nindex-url = https://user/simple\n")
    named = tmp_path / "named.conf"
    named.write_text("[install]\nindex-url = https://named/simple\n")
    found = PipConfiguration.from_environment({**home, "PIP_CONFIG_FILE": str(named)})
    assert found.indexes[0] == "https://named/simple"


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "broken.conf"
    broken.write_text("index-url = no section\n")
    with pytest.raises(ConfigurationError, match=r"broken\.conf"):
        PipConfiguration.from_environment({"PIP_CONFIG_FILE": str(broken), "HOME": str(tmp_path)})


def test_without_pip_an_index_must_be_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pip._internal.models.index", None)
    with pytest.raises(ConfigurationError, match="no package index is configured"):
        PipConfiguration.from_environment({"PIP_CONFIG_FILE": os.devnull})
    given = PipConfiguration.from_environment({"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": "https://own/simple"})
    assert given.indexes == ("https://own/simple",)

"""Settings: precedence, origins, errors that name the source, and edits that keep comments."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from localllm.errors import ConfigurationError
from localllm.kernels.cpu.compile import cache_directory
from localllm.paths import Paths
from localllm.settings import KINDS, Settings, parse_size, setting_names
from localllm.settings_edit import set_setting


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(config=tmp_path, data=tmp_path, cache=tmp_path / "cache")


def test_every_field_has_a_kind() -> None:
    assert tuple(KINDS) == setting_names()


def test_rising_precedence_and_origins(paths: Paths) -> None:
    paths.settings_file.write_text('threads = 2\ncontext = 100\nkv = "q8"\n')
    environment = {"LOCALLLM_CONTEXT": "200", "LOCALLLM_KV": "q4", "HF_TOKEN": "one", "LOCALLLM_HUB_TOKEN": "two"}
    settings = Settings.load({"kv": "f32", "mode": None}, paths=paths, environment=environment)
    assert (settings.threads, settings.context, settings.kv, settings.mode) == (2, 200, "f32", None)
    origins = {name: settings.origins[name] for name in ("threads", "context", "kv", "mode", "hub_token")}
    assert [origin.kind for origin in origins.values()] == ["file", "environment", "flag", "default", "environment"]
    assert [origin.where for origin in origins.values()] == [
        str(paths.settings_file), "LOCALLLM_CONTEXT", "--kv", "default", "LOCALLLM_HUB_TOKEN",
    ]  # fmt: skip
    assert settings.hub_token == "two"


def test_an_empty_variable_is_not_set(paths: Paths) -> None:
    assert Settings.load(paths=paths, environment={"LOCALLLM_THREADS": ""}).threads is None


WRONG = [
    ("threads = 0", "threads"),
    ("threads = true", "threads"),
    ('threads = "many"', "whole number"),
    ('kv = "q9"', "f16, f32, q8, q4, q2"),
    ('device = "tpu"', "cuda"),
    ('vram = "lots"', "6GiB"),
    ("vram = -1", "above 0"),
    ('offline = "maybe"', "true or false"),
    ('hub_endpoint = "hub"', "web address"),
    ('host = "a\\u001bb"', "one line"),
    ("port = 70000", "0 to 65535"),
    ("thredas = 2", "did you mean threads"),
    ("not toml", "cannot be read"),
]


@pytest.mark.parametrize(("text", "said"), WRONG)
def test_wrong_values_name_the_file(paths: Paths, text: str, said: str) -> None:
    paths.settings_file.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        Settings.load(paths=paths, environment={})
    assert said in str(caught.value)
    assert str(paths.settings_file) in str(caught.value)


def test_a_wrong_variable_is_named_and_a_secret_is_not_shown(paths: Paths) -> None:
    with pytest.raises(ConfigurationError, match="LOCALLLM_THREADS"):
        Settings.load(paths=paths, environment={"LOCALLLM_THREADS": "x"})
    with pytest.raises(ConfigurationError) as caught:
        Settings.load(paths=paths, environment={"HF_TOKEN": "secret\x01"})
    assert "secret" not in str(caught.value)
    settings = Settings.load(paths=paths, environment={"HF_TOKEN": "secret"})
    assert "secret" not in repr(settings)
    assert settings.shown("hub_token") == "(set)"


@pytest.mark.parametrize(
    ("text", "size"),
    [("6GiB", 6 << 30), ("500MB", 500_000_000), ("1.5G", 1_500_000_000), ("1024", 1024), (77, 77), ("2 kib", 2048)],
)
def test_sizes(text: str | int, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "1XB", "-5", "nan", "inf", "1e30", "5GiBs", True, None])
def test_sizes_that_are_none(text: object) -> None:
    with pytest.raises(ValueError, match=r"size|above 0"):
        parse_size(text)


def test_edits_keep_comments_and_refuse_mistakes(paths: Paths) -> None:
    paths.settings_file.write_text("# mine\nthreads = 2  # all of them\n")
    set_setting(paths, "kv", "q8")
    set_setting(paths, "threads", "4")
    assert paths.settings_file.read_text() == '# mine\nthreads = 4  # all of them\nkv = "q8"\n'
    before = paths.settings_file.read_text()
    with pytest.raises(ConfigurationError):
        set_setting(paths, "kv", "q9")
    with pytest.raises(ConfigurationError, match="did you mean"):
        set_setting(paths, "kvs", "q8")
    assert paths.settings_file.read_text() == before
    set_setting(paths, "kv", None)
    assert Settings.load(paths=paths, environment={}).kv is None


def test_a_file_with_a_secret_is_for_its_owner_only(paths: Paths) -> None:
    set_setting(paths, "api_key", "secret")
    assert stat.S_IMODE(paths.settings_file.stat().st_mode) == 0o600


def test_kernels_and_store_agree_on_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCALLLM_CACHE_DIR", raising=False)
    assert cache_directory() == Paths.from_environment().cache
    monkeypatch.setenv("LOCALLLM_CACHE_DIR", str(tmp_path))
    assert cache_directory() == Paths.from_environment().cache == tmp_path
    monkeypatch.delenv("LOCALLLM_CACHE_DIR")
    monkeypatch.delenv("LOCALLLM_HOME")
    assert cache_directory() == Paths.from_environment().cache


def test_home_puts_everything_into_one_folder(tmp_path: Path) -> None:
    found = Paths.from_environment({"LOCALLLM_HOME": str(tmp_path / "a b ü")})
    assert {found.config, found.data, found.cache.parent} == {tmp_path / "a b ü"}
    moved = Paths.from_environment({"LOCALLLM_HOME": str(tmp_path), "LOCALLLM_CACHE_DIR": str(tmp_path / "c")})
    assert (moved.data, moved.cache) == (tmp_path, tmp_path / "c")
    usual = Paths.from_environment({})
    assert all("localllm" in str(path) for path in (usual.config, usual.data, usual.cache))

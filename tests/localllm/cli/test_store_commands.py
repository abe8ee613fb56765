"""The commands of the model store: output for people and programs, exit codes, nothing hostile on the terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from localllm.cli import main
from localllm.conversations import ConversationStore
from localllm.gguf_io import QuantType
from localllm.gguf_io.writer import write_gguf

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run the command line in this process: (exit code, standard output, standard error)."""

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        output = capsys.readouterr()
        code = ended.value.code
        return (code if isinstance(code, int) else 1), output.out, output.err

    return call


@pytest.fixture
def model_file(data_folder: Path) -> Path:
    """A small model that can be run."""
    return sorted((data_folder / "models").glob("*.gguf"))[0]


@pytest.fixture
def imported(run: Callable[..., tuple[int, str, str]], model_file: Path) -> str:
    assert run("import", str(model_file), "--name", "tiny:1")[0] == 0
    return "tiny:1"


def facts(run: Callable[..., tuple[int, str, str]], *arguments: str) -> Any:
    code, output, _ = run(*arguments, "--json")
    assert code == 0
    return json.loads(output)


@pytest.fixture
def private_cache(private_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that `prune` may empty: the usual one is shared with tests that run at the same time."""
    cache = private_home / "cache"
    monkeypatch.setenv("LOCALLLM_CACHE_DIR", str(cache))
    return cache


@pytest.mark.usefixtures("private_cache")
def test_an_empty_store(run: Callable[..., tuple[int, str, str]]) -> None:
    code, output, _ = run("list")
    assert (code, "no models yet" in output) == (0, True)
    assert facts(run, "list")["models"] == []
    assert run("verify")[0] == 0
    assert run("prune")[1] == "nothing to delete\n"
    assert run("rm", "--partial")[0] == 0
    assert run("rm")[0] == 2


def test_import_list_show_verify_rm(run: Callable[..., tuple[int, str, str]], imported: str, model_file: Path) -> None:
    (model,) = facts(run, "list")["models"]
    assert (model["name"], model["size_bytes"], model["complete"]) == (imported, model_file.stat().st_size, True)
    assert "tiny:1" in run("list")[1]
    shown = facts(run, "show", imported)
    assert {"path", "architecture", "quant", "size_bytes"} <= set(shown)
    assert Path(shown["path"]).read_bytes() == model_file.read_bytes()
    assert facts(run, "verify")["ok"] is True
    code, output, _ = run("rm", "TINY:1")
    assert (code, "removed" in output) == (0, True)
    assert not Path(shown["path"]).exists()
    assert model_file.exists()
    code, _, errors = run("rm", imported)
    assert (code, "not on this computer" in errors) == (1, True)


def test_a_linked_import_shares_its_bytes(
    run: Callable[..., tuple[int, str, str]], tmp_path: Path, model_file: Path
) -> None:
    own = tmp_path / "own.gguf"
    own.write_bytes(model_file.read_bytes())
    path = Path(facts(run, "import", str(own), "--link")["path"])
    assert path.samefile(own)
    assert run("rm", "own")[0] == 0
    assert own.exists()


def test_two_names_of_one_content_share_a_blob(run: Callable[..., tuple[int, str, str]], model_file: Path) -> None:
    first = facts(run, "import", str(model_file), "--name", "one")
    second = facts(run, "import", str(model_file), "--name", "two")
    assert first["path"] == second["path"]
    assert facts(run, "rm", "one")["freed_bytes"] == {"one": 0}
    assert Path(second["path"]).exists()


def test_damage_is_found_and_named(run: Callable[..., tuple[int, str, str]], imported: str) -> None:
    path = Path(facts(run, "show", imported)["path"])
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    code, output, _ = run("verify", imported)
    assert (code, "damaged: its sha256 is" in output) == (1, True)
    path.unlink()
    assert "missing" in run("verify")[1]
    code, _, errors = run("show", imported)
    assert (code, f"localllm pull {imported}" in errors) == (1, True)
    assert facts(run, "list")["models"][0]["complete"] is False
    manifest = next((path.parent.parent / "manifests").glob("*.json"))
    manifest.write_text("{")
    assert "manifest is damaged" in run("verify")[1]
    assert run("list")[0] == 0


def test_what_is_no_model_is_not_imported(run: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    page = tmp_path / "page.gguf"
    page.write_text("<!DOCTYPE html>")
    code, _, errors = run("import", str(page))
    assert (code, "web page" in errors) == (1, True)
    assert facts(run, "list")["models"] == []
    assert run("import", str(tmp_path / "nothing.gguf"))[0] == 2


def test_prune_counts_what_it_deletes(
    run: Callable[..., tuple[int, str, str]], imported: str, private_home: Path, private_cache: Path
) -> None:
    blobs = Path(facts(run, "show", imported)["path"]).parent
    (blobs / f"{'0' * 64}.gguf").write_bytes(bytes(1000))
    repacked = private_cache / "repacked"
    repacked.mkdir(parents=True)
    (repacked / "weights").write_bytes(bytes(5000))
    chats = private_home / "chat-caches"
    chats.mkdir()
    (chats / "7.kv").write_bytes(bytes(300))
    assert facts(run, "prune", "--keep-cache")["freed_bytes"]["chat_caches"] == 0
    (blobs / f"{'0' * 64}.gguf").write_bytes(bytes(1000))
    store = ConversationStore(private_home / "chats.sqlite3")
    kept = store.caches.path(store.create("m"))
    kept.write_bytes(b"kv")
    store.close()
    freed = facts(run, "prune")["freed_bytes"]
    assert freed["chat_caches"] == 300
    assert kept.exists()
    assert freed["unused_blobs"] == 1000
    assert freed["repacked_weights"] >= 5000
    assert not repacked.exists()
    assert len(facts(run, "list")["models"]) == 1


def write_odd_model(path: Path, metadata: dict[str, Any]) -> None:
    values = np.zeros((4, 32), dtype=np.float32)
    write_gguf(path, metadata, {"w\x1b[2J": (QuantType.F32, values.shape, values)})


def test_hostile_metadata_stays_text(run: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    path = tmp_path / "odd.gguf"
    hostile = "name\x1b]52;c;aGk=\x07[red]x[/red]\u202e"
    write_odd_model(
        path,
        {
            "general.architecture": "novel\x1b[31m",
            "general.name": hostile,
            "general.license": hostile,
            "tokenizer.chat_template": "{{ x }}\x1b[2J",
            "key\x1b[2J": [hostile],
            "not.a.number": float("nan"),
        },
    )
    for arguments in (("show",), ("show", "--metadata"), ("show", "--template")):
        code, output, _ = run(*arguments, str(path))
        assert code == 0
        assert not set(output) & set("\x1b\x07\u202e")
        if arguments == ("show",):
            assert "[red]x[/red]" in output
            assert "cannot be run: " in output
            assert "docs/architectures.md" in output
    shown = facts(run, "show", str(path))
    assert (shown["supported"], shown["memory"]) == (False, [])
    code, _, errors = run("show", "--memory", str(path))
    assert (code, "cannot be counted" in errors) == (1, True)
    assert "\x1b" not in errors


def test_memory_by_type_and_kind_of_layer(run: Callable[..., tuple[int, str, str]], data_folder: Path) -> None:
    path = next((data_folder / "models").glob("*.gguf"))
    code, output, _ = run("show", "--memory", str(path), "--context", "1000")
    assert code == 0
    assert "KV cache for 1000 tokens" in output
    (memory,) = facts(run, "show", str(path), "-c", "1000")["memory"]
    assert memory["context"] == 1000
    assert facts(run, "show", str(path), "-c", "1000", "--memory")["memory"] == [memory]
    assert "for 1 token\n" in run("show", "--memory", str(path), "-c", "1")[1]
    for kind in ("f32", "f16", "q8", "q4", "q2"):
        assert memory["kv_bytes"][kind] == sum(layers["bytes"][kind] for layers in memory["layer_kinds"])
    assert memory["kv_bytes"]["f32"] == 2 * memory["kv_bytes"]["f16"]


@pytest.mark.parametrize("command", ["show", "pull"])
def test_unknown_names_get_the_nearest(run: Callable[..., tuple[int, str, str]], command: str) -> None:
    code, _, errors = run(command, "smolm2:135m\x1b[2J")
    assert (code, "did you mean smollm2:135m" in errors) == (1, True)
    assert "\x1b" not in errors


def test_a_path_without_a_file_is_said_to_have_none(run: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    code, _, errors = run("pull", str(tmp_path / "gone.gguf"))
    assert code == 1
    assert "there is no file" in errors
    assert "is a file on this computer" not in errors


def test_a_known_name_that_is_not_here_says_how_to_get_it(run: Callable[..., tuple[int, str, str]]) -> None:
    code, _, errors = run("show", "qwen3:4b")
    assert (code, "localllm pull qwen3:4b" in errors, "2.5 GB" in errors) == (1, True, True)


def test_offline_pulls_nothing(run: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALLLM_OFFLINE", "1")
    code, _, errors = run("pull", "qwen3:4b")
    assert (code, "offline" in errors) == (1, True)
    assert run("search", "--hub", "x")[0] == 1


def test_a_hub_that_cannot_be_reached_does_not_hide_the_catalogue(
    run: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    code, output, errors = run("search", "gemma", "270m")
    assert (code, "gemma3:270m" in output, "only the catalogue" in errors) == (0, True, True)
    assert run("search", "--hub", "gemma")[0] == 1


def test_search_and_models(run: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALLLM_OFFLINE", "1")
    assert [entry["name"] for entry in facts(run, "search", "gemma", "270m")["catalogue"]] == ["gemma3:270m"]
    assert "nothing matches" in run("search", "zzzz")[1]
    assert run("models", "add", "my:1b", "hf:a/b/c.gguf", "context=2048")[0] == 0
    assert facts(run, "models", "show", "my:1b")["context"] == 2048
    assert run("models", "edit", "my:1b", "context=")[0] == 0
    assert run("models", "edit", "my:1b", "nonsense")[0] == 2
    assert run("models", "edit", "my:1b", "contxt=1")[0] == 1
    assert "no mistakes" in run("models", "check")[1]
    assert any(entry["name"] == "my:1b" for entry in facts(run, "models", "list")["catalogue"])
    assert run("models", "remove", "my:1b")[0] == 0
    assert run("models", "show", "my:1b")[0] == 1


def test_config(run: Callable[..., tuple[int, str, str]], private_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("config", "set", "threads", "3")[0] == 0
    monkeypatch.setenv("LOCALLLM_KV", "q4")
    settings = facts(run, "config", "show")["settings"]
    assert settings["threads"] == {
        "value": 3, "origin": "file", "where": str(private_home / "settings.toml"),
    }  # fmt: skip
    assert settings["kv"] == {"value": "q4", "origin": "environment", "where": "LOCALLLM_KV"}
    assert run("config", "set", "hub_token", "secret")[1].startswith("hub_token = (set)")
    assert "secret" not in run("config", "show")[1]
    assert "LOCALLLM_KV" in run("config", "show", "--origin")[1]
    assert run("config", "set", "threads", "none")[0] == 1
    assert run("config", "unset", "threads")[0] == 0
    assert facts(run, "config", "path")["models"] == str(private_home / "models")


@pytest.mark.parametrize("command", ["show", "plan", "pull", "verify", "rm"])
@pytest.mark.parametrize("name", ["a" * 5000, "./" + "a" * 5000, "https://[::1"])
def test_names_that_nothing_can_have_are_one_short_error(
    run: Callable[..., tuple[int, str, str]], command: str, name: str
) -> None:
    code, out, err = run(command, name)
    assert (code, out) == (1, "")
    assert err.startswith("error: ")
    assert len(err) < 1000

"""The command `serve`: what it says when it cannot start."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from localllm.cli import main


def fails(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    with pytest.raises(SystemExit) as end:
        main(["serve", *arguments])
    assert isinstance(end.value.code, int)
    return end.value.code, capsys.readouterr().err


def test_without_a_name_it_is_the_model_of_a_bare_chat(
    data_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALLLM_OFFLINE", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "https://index.invalid/simple")
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    code, text = fails([], capsys)
    assert code == 1
    assert "serving smollm2:135m" in text
    assert "offline: only local" in text
    with pytest.raises(SystemExit):
        main(["import", str(data_folder / "models" / "arcee.gguf"), "--name", "mine"])
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code, text = fails(["--port", str(taken.getsockname()[1])], capsys)
    assert code == 1
    assert "serving mine" in text
    assert "cannot listen" in text


def test_unknown_model(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = fails(["no-such-model"], capsys)
    assert code == 1
    assert text.startswith("error: ")


def test_two_models_of_one_name(data_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(data_folder / "models" / "arcee.gguf")
    code, text = fails([model, model], capsys)
    assert code == 1
    assert "arcee" in text


def test_every_page_without_a_key(data_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = fails([str(data_folder / "models" / "arcee.gguf"), "--cors-origin", "*"], capsys)
    assert code == 1
    assert "API key" in text


def test_a_port_that_is_taken(data_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        code, text = fails([str(data_folder / "models" / "arcee.gguf"), "--port", port], capsys)
    assert code == 1
    assert port in text
    assert "--port" in text
    assert "Traceback" not in text


def test_a_file_that_is_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF" + bytes(40))
    code, text = fails([str(path)], capsys)
    assert code == 1
    assert text.startswith("error: ")
    assert "listening" not in text


def test_a_model_file_is_no_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["./some.gguf"])
    assert end.value.code == 2
    assert "localllm chat FILE" in capsys.readouterr().err

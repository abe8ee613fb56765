"""The commands where the system's encoding is not UTF-8, and where paths have letters of all kinds."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}  # Python would take UTF-8 in the C locale
WESTERN = {"PYTHONIOENCODING": "iso-8859-1"}


def run(environment: dict[str, str], home: Path, *arguments: str | bytes) -> tuple[int, bytes, str]:
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "LOCALLLM_HOME": str(home)}
    command = [sys.executable, "-m", "localllm", *arguments]
    done = subprocess.run(
        command, capture_output=True, stdin=subprocess.DEVNULL, env={**variables, **environment}, check=False
    )
    errors = done.stderr.decode(errors="replace")
    assert "Traceback" not in errors
    return done.returncode, done.stdout, errors


@pytest.fixture
def odd_file(data_folder: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "Öl und Käse" / "日本 模型"
    folder.mkdir(parents=True)
    return Path(shutil.copy(data_folder / "models" / "llama_gqa_tied_f16.gguf", folder / "mein modell.gguf"))


@pytest.mark.parametrize("environment", [ASCII, WESTERN, {}], ids=["ascii", "western", "utf-8"])
def test_a_model_in_a_folder_of_any_letters_answers(environment: dict[str, str], odd_file: Path) -> None:
    home = odd_file.parent / "Zuhause"
    arguments = ["run", str(odd_file), "Grüße aus 日本", "--raw", "-n", "3", "--device", "reference"]
    code, out, errors = run(environment, home, *arguments)
    assert code == 0, errors
    assert out


@pytest.mark.parametrize("environment", [ASCII, {}], ids=["ascii", "utf-8"])
def test_a_prompt_is_utf_8_whatever_the_system_says(environment: dict[str, str], odd_file: Path) -> None:
    code, out, errors = run(environment, odd_file.parent, "tokenize", str(odd_file), "Grüße 日本", "--ids")
    assert code == 0, errors
    assert out == run({}, odd_file.parent, "tokenize", str(odd_file), "Grüße 日本", "--ids")[1]


def test_a_terminal_without_a_letter_shows_a_question_mark(odd_file: Path) -> None:
    code, out, errors = run(WESTERN, odd_file.parent / "日本", "config", "path")
    assert code == 0, errors
    assert "/Öl und Käse/?? ??/??/".encode("iso-8859-1") in out


def test_bytes_that_are_no_text_are_no_model(tmp_path: Path) -> None:
    for command in ("rm", "show", "run"):
        code, _, errors = run({}, tmp_path, command, b"k\xe4se", *(["hello"] if command == "run" else []))
        assert code == 1
        assert errors.startswith("error: ")

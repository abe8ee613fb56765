"""Completion in a real shell: commands, options, names of models with their colons; nothing heavy is imported."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("numba", "llvmlite", "httpx2", "textual", "tokenizers", "jinja2")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """One in which `localllm` is a command."""
    command = tmp_path / "bin" / "localllm"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m localllm "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    python = os.pathsep.join(path for path in sys.path if path)
    path = f"{command.parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": python, "LOCALLLM_HOME": str(tmp_path / "home")}


def shell(environment: dict[str, str], *command: str) -> list[str]:
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert not done.stderr, done.stderr
    return done.stdout.split()


def in_bash(environment: dict[str, str], line: str) -> list[str]:
    if shutil.which("bash") is None:
        pytest.skip("there is no bash here")
    script = """
eval "$(localllm completion bash)"
compopt() { :; }
COMP_LINE=$1 COMP_POINT=${#1} COMP_WORDBREAKS=$' \\t\\n"=:'
_localllm_completion localllm
printf '%s\\n' "${COMPREPLY[@]}"
"""
    return shell(environment, "bash", "--norc", "-c", script, "bash", line)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("localllm perp", ["perplexity"]),
        ("localllm run --dev", ["--device"]),
        ("localllm run --device hy", ["hybrid"]),
        ("localllm plan gemma3:2", ["270m"]),
        ("localllm serve smollm2:1.7b gemma3:2", ["270m"]),
        ("localllm completion ", ["bash", "zsh", "fish"]),
    ],
)
def test_bash(environment: dict[str, str], line: str, expected: list[str]) -> None:
    assert in_bash(environment, line) == expected


def test_fish(environment: dict[str, str]) -> None:
    if shutil.which("fish") is None:
        pytest.skip("there is no fish here")
    script = "localllm completion fish | source; complete -C 'localllm plan gemma3:2'"
    assert shell(environment, "fish", "--no-config", "-c", script)[:1] == ["gemma3:270m"]


def test_zsh_can_read_its_function(environment: dict[str, str]) -> None:
    if shutil.which("zsh") is None:
        pytest.skip("there is no zsh here")
    script = 'autoload -U compinit; compinit -u -D; eval "$(localllm completion zsh)"; print ${_comps[localllm]}'
    assert shell(environment, "zsh", "-f", "-c", script) == ["_localllm_completion"]


def test_the_words_for_zsh_keep_their_colons(environment: dict[str, str]) -> None:
    asked = {"_LOCALLLM_COMPLETE": "zsh_complete", "COMP_WORDS": "localllm plan gemma3:2", "COMP_CWORD": "2"}
    assert shell(environment | asked, sys.executable, "-m", "localllm")[:2] == ["plain", "gemma3:270m"]


def test_nothing_heavy_is_imported(environment: dict[str, str]) -> None:
    asked = {"_LOCALLLM_COMPLETE": "bash_complete", "COMP_WORDS": "localllm run sm", "COMP_CWORD": "2"}
    program = "import atexit, sys; atexit.register(lambda: print(*sys.modules)); from localllm.cli import main; main()"
    words = shell(environment | asked, sys.executable, "-c", program)
    assert "plain,smollm2:135m" in words
    assert not set(words) & set(HEAVY)

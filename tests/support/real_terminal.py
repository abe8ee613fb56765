"""A real terminal for tests: tmux with a server of its own."""

from __future__ import annotations

import secrets
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

PATIENCE = 60.0  # seconds until a test that waits for something on the screen fails


class Terminal:
    """Runs one command in tmux; `screen` is what a person would see."""

    def __init__(
        self, folder: Path, command: Sequence[str], *, columns: int = 100, rows: int = 30, **variables: str
    ) -> None:
        if shutil.which("tmux") is None:
            pytest.skip("tmux is not here: no real terminal to test in")
        # A name of its own: a server that is still leaving would take in the next command and die with it.
        self._socket = str(folder / f"{secrets.token_hex(4)}.sock")
        words = [f"{name}={value}" for name, value in variables.items()]
        line = shlex.join(["env", *words, *command]) + "; echo LEFT WITH $?; sleep 60"
        size = ["-x", str(columns), "-y", str(rows)]
        self._tmux("-f", "/dev/null", "new-session", "-d", *size, line)

    def _tmux(self, *arguments: str) -> str:
        command = ["tmux", "-S", self._socket, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
        assert done.returncode == 0, f"{shlex.join(command)}: {done.stderr}"
        return done.stdout

    @property
    def screen(self) -> str:
        """The text on the screen."""
        return self._tmux("capture-pane", "-p")

    def press(self, *keys: str) -> None:
        """Keys by tmux's names."""
        self._tmux("send-keys", *keys)

    def type(self, text: str, *, enter: bool = True) -> None:
        """Text as it is, then Enter."""
        self._tmux("send-keys", "-l", text)
        if enter:
            self._tmux("send-keys", "Enter")

    def resize(self, columns: int, rows: int) -> None:
        """Another size."""
        self._tmux("resize-window", "-x", str(columns), "-y", str(rows))

    def until(self, text: str, *, there: bool = True, patience: float = PATIENCE) -> str:
        """Wait until the screen holds a text, or does not any more; returns the screen."""
        end = time.monotonic() + patience
        while (text in (screen := self.screen)) is not there:
            assert time.monotonic() < end, f"{text!r} did not {'come' if there else 'go'}:\n{screen}"
            time.sleep(0.1)
        return screen

    def close(self) -> None:
        """End everything that runs in it."""
        command = ["tmux", "-S", self._socket, "kill-server"]
        subprocess.run(command, capture_output=True, check=False, timeout=PATIENCE)


def python(*arguments: str) -> list[str]:
    """A command of this interpreter."""
    return [sys.executable, "-W", "ignore", *arguments]

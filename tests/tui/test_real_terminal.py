"""The app in a real terminal (tmux): start, ask, stop, branch, search, leave, come back."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from real_terminal import Terminal, python

SUPPORT = Path(__file__).resolve().parent.parent / "support"
Open = Callable[..., Terminal]
COMPILED = 300.0  # seconds that a slow machine may need for the kernels


@pytest.fixture
def open_terminal(tmp_path: Path) -> Iterator[Open]:
    opened: list[Terminal] = []
    search = os.pathsep.join([*(path for path in sys.path if path), str(SUPPORT)])

    def start(command: list[str], **options: object) -> Terminal:
        terminal = Terminal(
            tmp_path,
            command,
            PYTHONPATH=search,
            LOCALLLM_HOME=str(tmp_path / "home"),
            **options,  # type: ignore[arg-type]
        )
        opened.append(terminal)
        return terminal

    yield start
    for terminal in opened:
        terminal.close()


def test_a_visit(open_terminal: Open, tmp_path: Path) -> None:
    command = python(str(SUPPORT / "scripted_app.py"), str(tmp_path / "home"), "0.02")
    terminal = open_terminal(command)
    terminal.until("ready")
    terminal.type("how do I sort?")
    terminal.until("def quicksort")
    terminal.resize(20, 5)
    terminal.resize(100, 30)
    screen = terminal.until("mergesort │ n log n")
    terminal.until("漢字も")
    terminal.until("tokens")
    assert "[red]" not in screen
    terminal.type("long")
    terminal.until("= compute(")
    terminal.press("C-c")
    terminal.until("stopped")
    assert "LEFT WITH" not in terminal.screen
    terminal.press("C-r")
    terminal.until("writing")
    terminal.press("Escape")
    terminal.until("ready")
    terminal.press("Tab")
    terminal.until("retry")
    terminal.press("Left")
    terminal.until("1/2")
    terminal.press("C-o")
    terminal.until("Chats")
    terminal.type("quicksort", enter=False)
    terminal.until("```python def quicksort")  # what was found in the answer
    terminal.press("Escape")
    terminal.until("Chats", there=False)
    terminal.press("C-c")
    terminal.until("Leave?")
    terminal.press("y")
    terminal.until("LEFT WITH 0")
    terminal.close()
    again = open_terminal([*command])
    again.until("ready")
    again.press("C-o")
    again.until("how do I sort?")
    again.press("Enter")
    again.until("= compute(")
    again.press("C-q")
    again.until("LEFT WITH 0")


def test_a_paste_with_several_lines_sends_nothing(open_terminal: Open, tmp_path: Path) -> None:
    terminal = open_terminal(python(str(SUPPORT / "scripted_app.py"), str(tmp_path / "home")))
    terminal.until("ready")
    terminal._tmux("set-buffer", "first\nsecond\nthird")
    terminal._tmux("paste-buffer", "-p")
    screen = terminal.until("third")
    assert "first" in screen
    assert "You said" not in screen
    terminal.press("Enter")
    terminal.until("You said: first")


def test_a_paste_with_escape_sequences_presses_no_key(open_terminal: Open, tmp_path: Path) -> None:
    terminal = open_terminal(python(str(SUPPORT / "scripted_app.py"), str(tmp_path / "home")))
    terminal.until("ready")
    terminal._tmux("set-buffer", "abc \x1b[31mred\x1b[0m [@click=app.quit]q[/] \x1b\x1b[A tail\ntwo")
    terminal._tmux("paste-buffer", "-p")
    screen = terminal.until("two")
    assert "abc ␛[31mred␛[0m [@click=app.quit]q[/] ␛␛[A tail" in screen
    assert "You said" not in screen
    terminal.press("Enter")
    terminal.until("You said: abc")


def test_without_a_terminal_the_chat_is_plain(open_terminal: Open) -> None:
    terminal = open_terminal([*python("-m", "localllm", "chat", "--plain", "--url", "http://127.0.0.1:9/v1")])
    screen = terminal.until("LEFT WITH 1")
    assert "no answer from http://127.0.0.1:9/v1/models" in screen


@pytest.mark.real_model
def test_a_real_model(open_terminal: Open, smollm2_path: Path, tmp_path: Path) -> None:
    terminal = open_terminal(python("-m", "localllm", "chat", str(smollm2_path), "--temperature", "0", "-n", "4000"))
    terminal.until("Ask anything")
    terminal.type("Write a short story about a lighthouse.")  # while the model is still being loaded
    terminal.until("writing", patience=COMPILED)
    terminal.press("C-c")
    terminal.until("tok/s  stopped")
    terminal.type("/stats")
    terminal.until("Memory")
    terminal.press("Escape")  # a key that came at once behind it would be one together with it
    terminal.until("Memory", there=False)
    terminal.press("C-q")
    terminal.until("LEFT WITH 0")
    terminal.close()
    assert [path.suffix for path in (tmp_path / "home" / "chat-caches").iterdir()] == [".kv"]
    again = open_terminal(
        python("-m", "localllm", "chat", str(smollm2_path), "--temperature", "0", "-n", "8", "--last")
    )
    again.until("● ready")
    assert "lighthouse" in again.screen
    assert "░ 0/8192" not in again.screen  # what was computed is there before a question is asked
    again.type("/retry")
    again.until("cut at its length")
    again.press("C-q")
    again.until("LEFT WITH 0")

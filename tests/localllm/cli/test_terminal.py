"""Terminals and streams that lack something: signs, the rewriting of lines, or that are not open at all."""

from __future__ import annotations

import io
import os
import pty
import shlex
import subprocess
import sys

import pytest

from localllm.cli.terminal import draws_boxes, rewrites_lines

PATIENCE = 60.0  # seconds


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), **more}


@pytest.mark.parametrize(("encoding", "able"), [("utf-8", True), ("iso-8859-1", False), ("ascii", False)])
def test_boxes_need_their_signs(encoding: str, able: bool) -> None:
    assert draws_boxes(io.TextIOWrapper(io.BytesIO(), encoding=encoding)) == able


@pytest.mark.parametrize(("name", "able"), [("xterm", True), ("dumb", False)])
def test_a_dumb_terminal_writes_no_line_again(name: str, able: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", name)
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "wb", 0), os.fdopen(theirs, "w", encoding="utf-8") as stream:
        assert rewrites_lines(stream) == able
    assert not rewrites_lines(io.StringIO())


def test_a_terminal_that_cannot_draw_gets_a_chat_in_lines(tiny: str) -> None:
    ours, theirs = pty.openpty()
    os.write(ours, b"/quit\n")
    command = [sys.executable, "-m", "localllm", "chat", tiny, "--device", "reference"]
    variables = environment(PYTHONIOENCODING="iso-8859-1", TERM="xterm")
    with os.fdopen(ours, "wb", 0), os.fdopen(theirs, "wb", 0) as terminal:
        done = subprocess.run(
            command,
            stdin=terminal,
            stdout=terminal,
            stderr=subprocess.PIPE,
            env=variables,
            timeout=PATIENCE,
            check=False,
        )
    assert (done.returncode, b"8859" in done.stderr, b"in lines" in done.stderr) == (0, True, True)


@pytest.mark.parametrize("closing", ["| true", ">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_streams_that_are_closed_are_no_error(closing: str) -> None:
    line = f"{shlex.join([sys.executable, '-m', 'localllm', '--help'])} {closing}; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, env=environment(), timeout=PATIENCE, check=False)
    assert (done.returncode, done.stderr) == (0, b"")

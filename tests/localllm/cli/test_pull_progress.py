"""The views of a pull: JSON for programs, lines for logs, bars for terminals; names never reach a terminal raw."""

from __future__ import annotations

import io
import json

import pytest

from localllm.cli.pull_progress import JsonEvents, PlainLines, TerminalBars, describe
from localllm.store.events import (
    FileProgress,
    Note,
    Phase,
    PullEvent,
    PullFinished,
    PullPlanned,
    Retrying,
)

HOSTILE = "x[/red]\x1b[2J.gguf"
EVENTS: list[PullEvent] = [
    PullPlanned("m:1", f"hf:a/{HOSTILE}", 1000, 900, "MIT", (HOSTILE,)),
    FileProgress(HOSTILE, 0, 1000),
    Retrying(HOSTILE, "busy", 2.0),
    Note("a note"),
    FileProgress(HOSTILE, 1000, 1000),
    Phase(HOSTILE, "verifying"),
    PullFinished("m:1", "/tmp/m", 1000, "0" * 64, 900),
]


def test_json_events_are_one_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    view = JsonEvents()
    for event in EVENTS:
        view(event)
    view.close()
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    names = ["pull_planned", "file_progress", "retrying", "note", "file_progress", "phase", "pull_finished"]
    assert [line["event"] for line in lines] == names
    assert lines[0]["files"] == [HOSTILE]


def test_progress_events_are_thinned_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    view = JsonEvents()
    for done in range(1, 1001):
        view(FileProgress("f", done, 1000))
    lines = capsys.readouterr().out.splitlines()
    assert 2 <= len(lines) < 20
    assert json.loads(lines[-1])["done_bytes"] == 1000


def test_plain_lines(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localllm.cli.pull_progress.LINE_INTERVAL", 0.0)
    view = PlainLines()
    for event in EVENTS:
        view(event)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "\x1b" not in captured.err
    assert "1.0 kB of 1.0 kB (100%)" in captured.err
    assert "trying again in 2 s" in captured.err


def test_bars_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    view = TerminalBars()
    for event in EVENTS:
        view(event)
    view.close()
    assert "x[/red][2J.gguf" in stream.getvalue()
    assert "\x1b[2J" not in stream.getvalue()


def test_nothing_to_fetch_is_said() -> None:
    assert describe(PullFinished("m:1", "/m", 1000, "0" * 64, 0)) == "pulled m:1: 1.0 kB, nothing to fetch"
    assert describe(FileProgress("f", 1, 2)) is None

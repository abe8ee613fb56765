"""Whatever a model, a user, a file or a server writes is shown literally, and the app lives (the kind of oterm#11)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from app_driver import Stage
from scripted_chat import Gate
from textual import events
from textual.widgets import Static

from localllm.errors import DownloadError, ExecutionError
from localllm.tui.app import ChatApp, defect
from localllm.tui.meters import lines

MakeStage = Callable[..., Stage]

TEXTS = [  # a kind each, several of it: every one costs a walk through all screens
    "x[0] = y[/0] [/some/path]",
    "[red]hi[/red] [@click=app.quit]q[/] [bold",
    "a\x1b[2Jb \x1b]52;c;aGk=\x07 \x1b]8;;http://evil.example\x1b\\link\x1b]8;;\x1b\\ \x9b31mred",
    "abc\u202edef nul\x00 del\x7f $text-error {x} %s \\[x]",
]


@pytest.mark.parametrize("text", TEXTS)
def test_text_everywhere_is_literal(stage: MakeStage, text: str, tmp_path: Path) -> None:
    s = stage(f"answer {text}", f"\n\n```{text}\ncode {text}\n```\n", ExecutionError(f"error {text}", hint=text))

    async def steps(s: Stage) -> None:
        await s.ask(f"question {text}")
        await s.ask(text.replace("/", "", 1) if text.startswith("/") else f" {text}")
        await s.enter("/title " + text)
        await s.enter(f"/nonsense {text}")
        await s.enter(f"/attach {text}")
        await s.enter(f"/system {text}")
        s.app.tell(text, "error")
        for key in ("f1", "f2", "f3", "ctrl+o", "ctrl+l", "ctrl+p"):
            await s.press(key)
            assert_harmless(s)
            await s.press("escape")
        s.app.prompt.placeholder = ""
        assert_harmless(s)
        assert s.app.is_running
        assert s.contents[0] == f"question {s.app.transcript.turns[0].text.removeprefix('question ')}"

    s.run(steps)
    shown = [turn.text for turn in s.app.transcript.turns] if s.app.screen_stack else []
    assert not any("\x1b" in part for part in shown)


def assert_harmless(s: Stage) -> None:
    drawn = s.text
    assert not any((ord(character) < 32 and character != "\n") or 0x7F <= ord(character) < 0xA0 for character in drawn)
    assert "\u202e" not in drawn
    for strip in s.app.screen._compositor.render_strips():
        for segment in strip:
            assert segment.style is None or segment.style.link is None


def test_brackets_are_shown_as_they_are(stage: MakeStage) -> None:
    async def steps(s: Stage) -> None:
        await s.ask("x[0] = y[/0] [red]hi[/red] [@click=app.quit]q[/]")
        assert "x[0] = y[/0] [red]hi[/red] [@click=app.quit]q[/]" in s.text
        assert "see [/some/path] and [bold" in s.text
        assert "␛[2J" in s.text

    stage("see [/some/path] and [bold", " \x1b[2J").run(steps)


def test_a_hostile_model_name(stage: MakeStage) -> None:
    name = "[/red]\x1b[2J[bold"
    s = stage("a", model=name)
    s.models.here.append(name)

    async def steps(s: Stage) -> None:
        await s.ask("x")
        assert "[/red]␛[2J[bold" in s.text
        await s.press("ctrl+l")
        assert "[/red]␛[2J[bold" in s.text
        assert "Llama [red]3[/red]" in s.text
        assert_harmless(s)

    s.run(steps)


def test_a_hostile_pull_error(stage: MakeStage) -> None:
    s = stage("a")
    s.models.pull_error = DownloadError("broken [/x] \x1b[2J", hint="[red]again[/red]")

    async def steps(s: Stage) -> None:
        await s.enter("/model middle:8b")
        await s.until(lambda: "broken [/x] ␛[2J" in s.text)
        assert "[red]again[/red]" in s.text

    s.run(steps)


@pytest.mark.parametrize(
    ("pasted", "expected"),
    [
        ("one\r\ntwo\r\nthree", "one\ntwo\nthree"),
        ("a\tb\rc", "a\tb\nc"),
        ("\n".join(f"line {n}" for n in range(20_000)), "\n".join(f"line {n}" for n in range(20_000))),
        ("/quit\n\x1b[2J", "/quit\n␛[2J"),
    ],
)
def test_a_paste_is_whole_and_sends_nothing(stage: MakeStage, pasted: str, expected: str) -> None:
    async def steps(s: Stage) -> None:
        s.app.prompt.post_message(events.Paste(pasted))
        await s.pilot.pause()
        assert s.contents == []
        assert s.app.prompt.whole_text == expected
        await s.press("enter")
        await s.idle()
        assert s.contents == [expected, "ok"]

    stage("ok").run(steps)


def test_the_meters_follow_the_size_of_an_idle_app(stage: MakeStage) -> None:
    async def steps(s: Stage) -> None:
        for size in ((40, 12), (200, 60), (60, 30)):
            await s.pilot.resize_terminal(*size)
            drawn = lines(s.app.readings, size[0], 2 if size[1] >= 20 else 1).plain
            await s.until(lambda drawn=drawn: str(s.app.query_one("#meters", Static).render()) == drawn)  # type: ignore[misc]

    stage("ok").run(steps)


def test_resizing_in_mid_stream(stage: MakeStage) -> None:
    gate, second = Gate(), Gate()

    async def steps(s: Stage) -> None:
        await s.enter("go")
        await s.until(lambda: "漢字" in s.text)
        for size in ((20, 5), (1, 1), (40, 12), (200, 60)):
            await s.pilot.resize_terminal(*size)
            await s.pilot.pause()
            if size == (20, 5):
                gate.open()
        await s.until(lambda: "after" in s.text)
        second.open()
        await s.idle()
        await s.pilot.resize_terminal(100, 30)
        assert "漢字 and more" in s.text
        assert s.app.transcript.at_end

    stage(
        "漢字 and more\n\n```py\n" + "x" * 300 + "\n```\n| a | b |\n|---|---|\n| 1 | 2 |\n", gate, "\nafter", second
    ).run(steps)


def test_a_defect_is_one_line_that_can_be_reported(stage: MakeStage, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(app: ChatApp, text: str) -> None:
        raise KeyError(f"[red]{text}\x1b[2J")

    monkeypatch.setattr(ChatApp, "ask", fail)
    s = stage("never")

    async def steps(s: Stage) -> None:
        await s.enter("hello")

    with pytest.raises(KeyError) as caught:
        s.run(steps)
    assert s.app.return_code == 1
    told = defect(caught.value)
    assert told.startswith("error: a defect of localllm ended the chat: KeyError at test_hostile_text.py:")
    assert "[red]hello" in told
    assert "\x1b" not in defect(ValueError("\x1b[2J"))
    assert "Traceback" not in told

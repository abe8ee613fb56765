"""Chats, models, settings, plan, help, palette, welcome: every action of every screen."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from app_driver import Stage

from localllm.conversations import ConversationStore

MakeStage = Callable[..., Stage]


def test_chats_are_listed_searched_renamed_deleted_and_brought_back(stage: MakeStage) -> None:
    async def steps(s: Stage) -> None:
        for text in ("about whales", "about trees", "about stars"):
            await s.ask(text)
            await s.press("ctrl+n")
            assert s.contents == []
        await s.press("ctrl+o")
        assert s.text.index("about stars") < s.text.index("about trees") < s.text.index("about whales")
        await s.press(*"needle")
        assert "about trees" in s.text  # by the text of its answer
        await s.press(*["backspace"] * 6, *"whales")
        assert "about trees" not in s.text
        await s.press("f2", *" ([b]", "enter")
        assert "about whales ([b]" in s.text
        await s.press("ctrl+d")
        assert "nothing found" in s.text
        await s.press("ctrl+z")
        assert "about whales ([b]" in s.text
        await s.press("enter")
        assert s.desk.title == "about whales ([b]"
        assert s.contents == ["about whales", "the needle"]
        await s.enter("/delete")
        assert s.contents == []
        await s.enter("/undo")
        assert s.contents == ["about whales", "the needle"]
        await s.enter("/chats stars")
        await s.press("down", "enter")
        assert s.contents[0] == "about stars"
        await s.press("ctrl+o", "f2", "escape", "escape")
        assert len(s.app.screen_stack) == 1
        await s.enter("/open 2")
        assert s.contents[0] == "about trees"
        await s.enter("/open 99")
        await s.until(lambda: "there is no chat number 99" in s.told)

    stage("the needle").run(steps)


def test_everything_is_there_after_a_restart(stage: MakeStage) -> None:
    async def first(s: Stage) -> None:
        await s.enter("/system be kind")
        await s.ask("remember me")

    s = stage("an answer")
    s.run(first)
    assert s.models.opened[0].freed
    again = stage("another")
    again.desk.open(1)

    async def second(s: Stage) -> None:
        assert "remember me" in s.text
        assert "an answer" in s.text
        assert s.desk.system == "be kind"
        await s.press("up")
        assert s.app.prompt.text == "remember me"

    again.run(second)


def test_the_first_run_pulls_with_one_key_and_starts(stage: MakeStage) -> None:
    s = stage("hello", model="middle:8b")

    async def steps(s: Stage) -> None:
        assert "Welcome to localllm" in s.text
        assert "middle:8b  5.0 GB, MIT, fits this machine: partly" in s.text
        await s.press("enter")
        await s.until(lambda: s.models.pulled == ["middle:8b"] and len(s.app.screen_stack) == 1)
        await s.idle()
        await s.ask("hi")
        assert s.contents == ["hi", "hello"]

    s.run(steps)


def test_the_first_run_with_another_model(stage: MakeStage) -> None:
    s = stage("hello", model="middle:8b")

    async def steps(s: Stage) -> None:
        await s.press("m")
        assert "large:70b" in s.text
        await s.press("home", "enter")
        await s.idle()
        assert s.desk.model == "scripted"

    s.run(steps)


def test_a_pull_shows_its_progress_and_can_be_cancelled(stage: MakeStage) -> None:
    s = stage("a")
    reached, go = threading.Event(), threading.Event()

    def step(done: int) -> None:
        if done == 500:
            reached.set()
            assert go.wait(60)

    s.models.pull_step = step

    async def steps(s: Stage) -> None:
        await s.press("ctrl+l")
        assert "fits: no" in s.text
        assert "Apache-2.0" in s.text
        await s.press("end", "enter")
        await s.until(lambda: "50% of" in s.text)
        await s.press("escape")
        go.set()
        await s.until(lambda: "cancelled; Enter goes on" in s.text)
        assert s.models.pulled == []
        s.models.pull_step = None
        await s.press("enter")
        await s.until(lambda: s.models.pulled == ["middle:8b"])
        await s.until(lambda: len(s.app.screen_stack) == 1)
        await s.idle()
        assert s.desk.model == "middle:8b"

    s.run(steps)


def test_the_model_changes_within_a_chat(stage: MakeStage) -> None:
    async def steps(s: Stage) -> None:
        await s.ask("one")
        await s.enter("/model other")
        await s.idle()
        assert s.models.opened[0].freed
        await s.ask("two")
        assert [message.figures.get("model") for message in s.desk.messages()][1::2] == ["scripted", "other"]
        assert s.desk.store.conversation(1).model == "other"
        assert s.models.opened[-1].seen[0][-1]["content"] == "two"

    stage("a").run(steps)


def test_system_prompt_and_sampling(stage: MakeStage) -> None:
    async def steps(s: Stage) -> None:
        await s.press("f2", *"Be terse.", "tab", *"0.25", "tab", *"x")
        await s.press("escape")
        assert "top_k must be a whole number" in s.text
        await s.press("backspace", "escape")
        assert len(s.app.screen_stack) == 1
        await s.ask("q")
        assert s.models.opened[0].seen[0][0] == {"role": "system", "content": "Be terse."}
        assert s.models.opened[0].sampled[0]["temperature"] == 0.25
        await s.enter("/set temperature -")
        await s.enter("/system -")
        await s.ask("q")
        assert s.models.opened[0].sampled[-1]["temperature"] == 0.7
        assert s.models.opened[0].seen[-1][0]["role"] == "user"
        await s.enter("/set temperature hot")
        await s.until(lambda: "temperature must be a number" in s.told)

    stage("a").run(steps)


def test_copy_of_messages_and_code(stage: MakeStage) -> None:
    async def steps(s: Stage) -> None:
        await s.ask("q")
        await s.enter("/copy")
        await s.enter("/copy 2")
        await s.enter("/copy 3")
        assert s.copied == ["a\n\n```py\none\n```\n\n```\ntwo\n\tthree\n```\n", "two\n\tthree"]
        await s.until(lambda: "the answer has 2 code blocks" in s.told)
        await s.press("tab", "k", "c")
        assert s.copied[-1] == "q"
        line = next(n for n, row in enumerate(s.text.splitlines()) if " py " in row and "copy" in row)
        column = s.text.splitlines()[line].index("copy")
        await s.pilot.click(offset=(column + 1, line))
        await s.pilot.pause()
        assert s.copied[-1] == "one"

    stage("a\n\n```py\none\n```\n\n```\ntwo\n\tthree\n```\n").run(steps)


def test_mouse_selection_joins_wrapped_lines(stage: MakeStage) -> None:
    async def steps(s: Stage) -> None:
        await s.ask("q")
        rows = s.text.splitlines()
        first = next(n for n, row in enumerate(rows) if "word0 " in row)
        await s.pilot.mouse_down(offset=(2, first))
        await s.pilot.hover(offset=(7, first + 1))
        await s.pilot.mouse_up(offset=(7, first + 1))
        await s.press("ctrl+c")
        assert s.copied[-1].startswith("word0 word1 ")
        assert "\n" not in s.copied[-1]

    stage(" ".join(f"word{n}" for n in range(20))).run(steps, size=(60, 24))


def test_files_come_in_and_go_out(stage: MakeStage, tmp_path: Path) -> None:
    note, other = tmp_path / "note.md", tmp_path / "other.json"
    note.write_text("contents")
    other.write_text(json.dumps([{"role": "user", "content": "from elsewhere"}]))

    async def steps(s: Stage) -> None:
        await s.enter(f"/attach {note.parent}")
        await s.until(lambda: "is a folder" in s.told)
        await s.enter(f"/attach {note}")
        await s.until(lambda: "1 file attached, sent with the next question: note.md" in s.text)
        await s.ask("what is it?")
        assert s.contents[0] == "note.md:\n```md\ncontents\n```\n\nwhat is it?"
        await s.enter(f"/export {tmp_path / 'chat.foo'}")
        await s.enter(f"/export {tmp_path / 'chat.json'}")
        await s.until(lambda: "saved as Markdown in" in s.told and (tmp_path / "chat.json").exists())
        assert "what is it?" in (tmp_path / "chat.foo").read_text()
        assert json.loads((tmp_path / "chat.json").read_text())["format"] == "localllm-chat"
        await s.enter(f"/import {other}")
        await s.until(lambda: s.contents == ["from elsewhere"])
        await s.enter("/import /nowhere/x.json")
        await s.until(lambda: "cannot be read" in s.told)

    stage("a").run(steps)


def test_the_editor(stage: MakeStage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "edit.sh"
    script.write_text('#!/bin/sh\necho "and this" >> "$1"\n')
    script.chmod(0o755)
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", str(script))

    async def steps(s: Stage) -> None:
        s.app.prompt.fill("this")
        monkeypatch.setattr(s.app, "suspend", lambda: threading.Lock())  # a headless driver cannot be suspended
        await s.press("ctrl+g")
        assert s.app.prompt.text == "this\nand this" or s.app.prompt.text == "thisand this"
        monkeypatch.setenv("EDITOR", "/nowhere/editor")
        await s.press("ctrl+g")
        await s.until(lambda: "cannot be started" in s.told)

    stage("a").run(steps)


def test_help_palette_themes_and_suggestions(stage: MakeStage) -> None:
    async def steps(s: Stage) -> None:
        await s.press("f1")
        assert "Ctrl-J" in s.text
        await s.press("escape")
        await s.press("/", "e")
        assert "/export [FILE]" in s.text
        assert "/edit [TEXT]" in s.text
        await s.press("d", "tab")
        assert s.app.prompt.text == "/edit "
        s.app.prompt.text = ""
        await s.press("ctrl+p")
        await s.press(*"undo")
        await s.until(lambda: "take the last deleted chat" in s.text)
        await s.press("escape")
        await s.enter("/theme nord")
        assert s.app.theme == "nord"
        await s.enter("/theme nothing")
        await s.until(lambda: "there is no theme" in s.told)
        await s.enter("/")
        assert "Commands" in s.text

    stage("a").run(steps)


def test_the_plan_and_the_meters(stage: MakeStage) -> None:
    async def steps(s: Stage) -> None:
        s.models.opened[0].evicted = 2
        await s.ask("q")
        bottom = "\n".join(s.text.splitlines()[-2:])
        for part in ("2.0 tok/s (expected 100)", "prompt 4 tok/s", "4/4096", "evicted 2", "model 98 MB", "KV 12 MB"):
            assert part in bottom
        await s.press("f3")
        for part in ("98 MB (100%)", "evicted 2", "expected 100.0 tok/s", "measured 2.0 tok/s"):
            assert part in s.text
        await s.press("end")
        for part in (
            "hot layers first",
            "0 CPU",
            "1 GPU 40%",
            "2 GPU  ",
            "7.0 MB    2.0 MB       21 MB",
            "head, on the CPU",
        ):
            assert part in s.text
        await s.press("escape")
        await s.enter("/stats")
        assert "Memory" in s.text

    stage("a", "b", "c").run(steps)


@pytest.mark.parametrize("size", [(40, 12), (20, 5), (200, 60)])
def test_every_screen_fits_every_size(stage: MakeStage, size: tuple[int, int]) -> None:
    async def steps(s: Stage) -> None:
        await s.ask("# hello\n\n- a")
        for key in ("f1", "f2", "f3", "ctrl+o", "ctrl+l", "ctrl+p", "ctrl+c"):
            await s.press(key)
            assert len(s.app.screen_stack) == 2, key
            assert all(len(row) <= size[0] for row in s.text.splitlines())
            await s.press("escape")
            assert len(s.app.screen_stack) == 1, key
        assert s.app.prompt.region.height >= 1
        assert "ready" in s.text or size[1] < 10

    stage("| a | b |\n|---|---|\n| 1 | 2 |\n\n1. x\n   - y").run(steps, size=size)


def test_leaving_in_mid_answer_keeps_the_part(stage: MakeStage) -> None:
    from scripted_chat import Gate

    gate = Gate()
    s = stage("some ", gate, "more")

    async def steps(s: Stage) -> None:
        await s.enter("q")
        await s.until(lambda: gate.reached.is_set())
        await s.press("ctrl+q")

    s.run(steps)
    store = ConversationStore(s.paths.chats)
    answer = store.path_to(store.conversation(1).leaf)[-1]
    assert (answer.content, answer.state) == ("some ", "partial")
    store.close()

"""Asking, stopping, editing, branching and what is on disk at each moment."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from app_driver import Stage
from scripted_chat import Gate, ScriptedBackend

from localllm.errors import ExecutionError, OutOfMemoryError, RequestError
from localllm.kernels.executor import LoadProgress
from localllm.tui.screens.models import ModelsScreen

MakeStage = Callable[..., Stage]


def test_a_question_is_answered_shown_and_kept(stage: MakeStage) -> None:
    async def steps(s: Stage) -> None:
        await s.ask("What is the capital?")
        assert s.contents == ["What is the capital?", "It is **Paris**."]
        assert "It is Paris." in s.text
        assert "▸ thought, 1 word" in s.text
        assert "3.0 tok/s" in s.text
        assert s.app.prompt.text == ""
        assert "What is the capital?" in s.text.splitlines()[0]

    stage("<think>hm</think>", "It is ", "**Paris**", ".").run(steps)


@pytest.mark.parametrize("key", ["ctrl+c", "escape"])
def test_the_first_stop_keeps_the_part_as_a_turn_that_goes_on(stage: MakeStage, key: str) -> None:
    gate = Gate()
    s = stage("one ", gate, "two ")

    async def steps(s: Stage) -> None:
        await s.enter("count")
        await s.until(lambda: "one" in s.text)
        assert s.contents == ["count", ""]  # the question is on disk, the answer is being written
        await s.press(key)
        await s.idle()
        assert len(s.app.screen_stack) == 1
        assert s.contents == ["count", "one "]
        assert "stopped" in s.text
        s.models.opened[0].pieces = ("two",)
        await s.enter("/continue")
        await s.idle()
        assert s.contents == ["count", "one two"]

    s.run(steps)


@pytest.mark.parametrize("key", ["ctrl+c", "escape"])
def test_a_stop_while_the_model_loads_leads_to_the_picker_at_once(stage: MakeStage, key: str) -> None:
    gate = Gate()
    s = stage("never")
    slow = ScriptedBackend("never", load=[LoadProgress("compiling", 0.5), gate, LoadProgress("compiling", 0.9)])
    s.desk.backend = slow

    async def steps(s: Stage) -> None:
        await s.until(lambda: "compiling" in s.text)
        await s.enter("a question that waits")
        await s.press(key)
        assert not s.app.busy  # although the gate is shut
        assert isinstance(s.app.screen, ModelsScreen)
        await s.press("escape")
        assert "no model is loaded" in s.text
        s.app.prompt.fill("hello")
        slow.load_steps = [LoadProgress("again", 0.1)]
        slow.pieces = ("yes",)
        gate.open()
        await s.press("enter")
        await s.idle()
        assert s.contents == ["a question that waits", "", "hello", "yes"]

    s.run(steps, loaded=False)


def test_a_stop_before_loading_tells_anything(stage: MakeStage) -> None:
    gate = Gate()
    s = stage("never")
    s.desk.backend = ScriptedBackend("never", load=[gate, LoadProgress("compiling", 0.9)])

    async def steps(s: Stage) -> None:
        gate.wait_until_reached()
        await s.press("escape")
        assert isinstance(s.app.screen, ModelsScreen)
        gate.open()

    s.run(steps, loaded=False)


def test_another_model_while_one_loads(stage: MakeStage) -> None:
    gate = Gate()
    s = stage("fine")
    slow = ScriptedBackend("never", load=[LoadProgress("compiling", 0.5), gate, LoadProgress("compiling", 0.9)])
    s.desk.backend = slow

    async def steps(s: Stage) -> None:
        await s.until(lambda: "compiling" in s.text)
        await s.enter("/model other")
        gate.open()
        await s.idle()
        await s.ask("hello")
        assert s.contents == ["hello", "fine"]
        assert slow.freed

    s.run(steps, loaded=False)


def test_a_chat_goes_on_with_what_was_computed(stage: MakeStage) -> None:
    async def steps(s: Stage) -> None:
        await s.ask("one")
        await s.press("ctrl+n")
        await s.idle()
        await s.enter("/open 1")
        await s.idle()
        assert [message["content"] for message in s.models.opened[0].restored[0]] == ["one", "a"]
        await s.ask("two")
        await s.press("ctrl+n")
        await s.idle()
        s.store.caches.path(1).write_text("damaged")
        await s.enter("/open 1")
        await s.idle()
        await s.until(lambda: "damaged: the chat is read anew" in s.told)
        await s.ask("three")
        assert s.contents == ["one", "a", "two", "a", "three", "a"]

    stage("a").run(steps)


def test_control_c_asks_when_nothing_is_written(stage: MakeStage) -> None:
    async def steps(s: Stage) -> None:
        await s.press("ctrl+c")
        assert "Leave? The chat is kept." in s.text
        await s.press("n")
        assert len(s.app.screen_stack) == 1
        await s.press("ctrl+c", "y")
        await s.until(lambda: not s.app.is_running or s.app._exit)

    stage("a").run(steps)


def test_a_question_while_an_answer_is_written_is_not_lost(stage: MakeStage) -> None:
    gate = Gate()

    async def steps(s: Stage) -> None:
        await s.enter("first")
        await s.until(lambda: "one" in s.text)
        await s.enter("second")
        await s.until(lambda: "an answer is being written" in s.told)
        assert s.app.prompt.text == "second"
        gate.open()
        await s.idle()
        assert s.contents == ["first", "one "]

    stage("one ", gate).run(steps)


def test_retry_edit_and_branches(stage: MakeStage) -> None:
    async def steps(s: Stage) -> None:
        await s.ask("first")
        s.models.opened[0].pieces = ("b",)
        await s.press("ctrl+r")
        await s.idle()
        assert s.contents == ["first", "b"]
        assert "‹ 2/2 ›" in s.text
        await s.enter("/branch")
        assert s.contents == ["first", "a"]
        await s.press("tab", "right")
        assert s.contents == ["first", "b"]
        await s.press("up", "up", "e")
        assert s.app.prompt.text == "first"
        assert "editing" in s.text
        await s.press("escape")
        assert s.app.prompt.text == ""
        await s.press("alt+up", "k", "e")
        await s.enter("other")
        await s.idle()
        assert s.contents == ["other", "b"]
        await s.enter("/edit third")
        await s.idle()
        assert s.contents == ["third", "b"]
        assert "‹ 3/3 ›" in s.text

    stage("a").run(steps)


def test_a_retry_in_the_middle_cuts_the_line_there(stage: MakeStage) -> None:
    async def steps(s: Stage) -> None:
        await s.ask("one")
        await s.ask("two")
        s.models.opened[0].pieces = ("new",)
        await s.press("tab", "k", "k", "r")
        await s.idle()
        assert s.contents == ["one", "new"]

    stage("old").run(steps)


@pytest.mark.parametrize(
    "error",
    [ExecutionError("bad [/luck]", hint="do this"), OutOfMemoryError("no memory: 3 GB missing"), ValueError("odd")],
)
def test_an_error_is_shown_and_the_chat_stays(stage: MakeStage, error: Exception) -> None:
    async def steps(s: Stage) -> None:
        await s.ask("go")
        text = str(error).split("\n")[0]
        await s.until(lambda: text in s.text.replace("\n", " ") or text in s.told)
        s.models.opened[0].pieces = ("fine",)
        await s.ask("again")
        assert s.contents[-1] == "fine"

    stage("half ", error).run(steps)


def test_a_model_that_cannot_be_loaded_is_said_and_another_can_be_taken(stage: MakeStage) -> None:
    s = stage("fine")
    s.desk.backend = ScriptedBackend("x", load=[OutOfMemoryError("needs 40 GB")])

    async def steps(s: Stage) -> None:
        await s.until(lambda: "needs 40 GB" in s.told)
        assert "no model is loaded" in s.text
        await s.enter("/model other")
        await s.idle()
        await s.ask("hello")
        assert s.contents == ["hello", "fine"]

    s.run(steps)


def test_history_and_several_lines(stage: MakeStage) -> None:
    async def steps(s: Stage) -> None:
        await s.ask("one")
        await s.press("h", "i", "ctrl+j", "y", "o")
        assert s.app.prompt.text == "hi\nyo"
        await s.press("enter")
        await s.idle()
        assert s.contents[2] == "hi\nyo"
        await s.press("up")
        assert s.app.prompt.text == "hi\nyo"
        await s.press("up", "up")
        await s.press("up", "up")
        assert s.app.prompt.text == "one"
        await s.press("down")
        assert s.app.prompt.text == "hi\nyo"

    stage("a").run(steps)


def test_the_reader_who_scrolled_away_is_not_pulled_back(stage: MakeStage) -> None:
    gate, second = Gate(), Gate()
    lines = "\n\n".join(f"line {n}" for n in range(60))

    async def steps(s: Stage) -> None:
        await s.enter("go")
        await s.until(lambda: "line 59" in s.text)
        await s.press("pageup")
        gate.open()
        await s.until(lambda: "the end" in s.app.transcript.turns[-1].text)
        assert "the end" not in s.text
        await s.press("ctrl+end")
        assert "the end" in s.text
        second.open()
        await s.idle()

    stage(lines, gate, "\n\nthe end", second).run(steps)


def test_a_question_may_be_asked_while_the_model_loads(stage: MakeStage) -> None:
    gate = Gate()
    s = stage()
    s.desk.backend = ScriptedBackend("fine", load=[LoadProgress("compiling", 0.5), gate])

    async def steps(s: Stage) -> None:
        await s.until(lambda: "compiling" in s.text)
        await s.enter("early")
        assert s.contents == ["early", ""]
        assert "early" in s.text.splitlines()[2]
        await s.enter("too early")
        await s.until(lambda: "an answer is being written" in s.told)
        gate.open()
        await s.idle()
        assert s.contents == ["early", "fine"]

    s.run(steps, loaded=False)


def test_what_is_laid_out_stays_so_when_the_next_answer_comes(stage: MakeStage) -> None:
    async def steps(s: Stage) -> None:
        await s.ask("first")
        answer = s.app.transcript.turns[-1]
        document = answer.document
        await s.press("alt+up", "t", "escape")
        assert answer.thinking_shown
        await s.ask("second")
        same = s.app.transcript.turns[1]
        assert same.document is document
        assert same.thinking_shown
        s.store.write(same.message, "changed elsewhere", state="complete")
        s.app.reload()
        assert s.app.transcript.turns[1].document is not document
        assert "changed elsewhere" in s.text

    stage("<think>hm</think>", "It is so.").run(steps)


def test_a_long_block_of_code_gets_all_its_colours(stage: MakeStage) -> None:
    code = "".join(f"def f{number}(): return {number}\n" for number in range(700))

    async def steps(s: Stage) -> None:
        await s.ask("code")
        turn = s.app.transcript.turns[-1]
        await s.until(lambda: not turn.uncoloured)
        assert sum("code-keyword" in str(row.spans) for row in turn.rows(80)) == 700

    stage(f"```python\n{code}```\n\nDone.").run(steps)


def test_a_model_that_cannot_be_loaded_does_not_take_the_present_one_away(stage: MakeStage) -> None:
    async def steps(s: Stage) -> None:
        await s.ask("first")
        s.models.here.append("WRONG")
        s.models.make = lambda name: ScriptedBackend(name=name, load=[RequestError("it has no model 'WRONG'")])
        await s.enter("/model WRONG")
        await s.until(lambda: "scripted stays in use" in s.text)
        await s.until(lambda: not s.app.busy and "ready" in s.text)
        await s.ask("second")
        assert s.contents == ["first", "yes", "second", "yes"]

    stage("yes").run(steps)


def test_a_disk_that_is_full_is_told_and_the_chat_goes_on(stage: MakeStage) -> None:
    async def steps(s: Stage) -> None:
        await s.ask("first")
        database = s.store._database
        (pages,) = database.execute("PRAGMA page_count").fetchone()
        database.execute(f"PRAGMA max_page_count = {pages}")
        await s.enter("long " * 30_000)
        await s.until(lambda: "the disk is full" in s.told)
        await s.idle()
        await s.enter("/system " + "long " * 30_000)
        database.execute("PRAGMA max_page_count = 1000000")
        await s.ask("second")
        assert s.contents[-2:] == ["second", "yes"]

    stage("yes").run(steps)

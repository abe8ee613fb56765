"""The plain line mode: questions in, answers out, commands, and nothing that could move a cursor."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripted_chat import Piece, ScriptedBackend
from scripted_models import ScriptedModels

from localllm.chat.desk import ChatDesk
from localllm.cli.plain_chat import PlainChat
from localllm.conversations import ConversationStore
from localllm.errors import DownloadError, ExecutionError, RequestError


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ConversationStore]:
    store = ConversationStore(tmp_path / "chats.sqlite3")
    yield store
    store.close()


def talk(
    store: ConversationStore, lines: str, *pieces: Piece, model: str = "scripted"
) -> tuple[ChatDesk, ScriptedModels]:
    models = ScriptedModels(*pieces)
    desk = ChatDesk(store, models, model)
    PlainChat(desk, io.StringIO(lines)).run()
    return desk, models


def test_questions_are_answered_and_kept(store: ConversationStore, capsys: pytest.CaptureFixture[str]) -> None:
    desk, models = talk(store, 'hello\n"""\ntwo\nlines\n"""\n', "<think>hm</think>", "Par", "is")
    assert capsys.readouterr().out == "hmParis\nhmParis\n"
    assert [message.content for message in desk.messages()] == ["hello", "Paris", "two\nlines", "Paris"]
    assert models.opened[0].freed


def test_text_of_a_model_cannot_steer_the_terminal(
    store: ConversationStore, capsys: pytest.CaptureFixture[str]
) -> None:
    talk(store, "x\n", "\x1b[2J\x1b]52;c;aGk=\x07 [red]hi[/red] \u202e")
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\x07" not in out
    assert "␛[2J␛]52;c;aGk=␇ [red]hi[/red] \\u202e" in out


def test_an_error_ends_one_answer_not_the_chat(store: ConversationStore, capsys: pytest.CaptureFixture[str]) -> None:
    desk, _ = talk(store, "a\nb\n", "half ", ExecutionError("no luck", hint="try again"))
    shown = capsys.readouterr()
    assert shown.out == "half \nhalf \n"
    assert shown.err.count("error: no luck\n  try again") == 2
    assert len(desk.messages()) == 4


def test_every_command(store: ConversationStore, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    note, saved, foreign = tmp_path / "note.txt", tmp_path / "chat.json", tmp_path / "other.json"
    note.write_text("some ```text```\n")
    foreign.write_text(json.dumps([{"role": "user", "content": "from elsewhere"}]))
    lines = f"""/system Be brief.
/set temperature 0.1
/attach {note}
what is this?
/retry
/branch
/continue
/edit another question
/title A [b]title[/b]
/stats
/chats
/chats another
/export {saved}
/export {saved}
/import {foreign}
/model other
/model
/delete
/undo
/new
/open 1
/open x
/copy
/nonsense
/help
/quit
never read
"""
    desk, models = talk(store, lines, "answer")
    shown = capsys.readouterr()
    assert "never read" not in [message.content for message in desk.messages()]
    assert models.opened[0].seen[0][0] == {"role": "system", "content": "Be brief."}
    assert models.opened[0].seen[0][1]["content"] == "note.txt:\n````txt\nsome ```text```\n````\n\nwhat is this?"
    assert models.opened[0].sampled[0]["temperature"] == 0.1
    assert desk.model == "other"
    assert desk.title == "A [b]title[/b]"
    assert json.loads(saved.read_text())["system"] == "Be brief."
    assert {chat.title for chat in store.conversations()} == {"A [b]title[/b]", "from elsewhere"}
    for part in ("scripted, a script", "98 MB on cpu", "large:70b", "fits: no", "/attach FILE"):
        assert part in shown.out
    for part in (
        "exists already",
        "which chat?",
        "/copy needs the app",
        "question: note.txt\n",
        "saved as JSON in /",
        "there is no command /nonsense",
        "imported 1",
    ):
        assert part in shown.err


def test_a_model_that_is_not_here_is_pulled_first(store: ConversationStore, capsys: pytest.CaptureFixture[str]) -> None:
    _, models = talk(store, "hi\n", "ok", model="middle:8b")
    assert models.pulled == ["middle:8b"]
    assert "pulling middle:8b" in capsys.readouterr().err


def test_a_stop_keeps_the_part(store: ConversationStore, capsys: pytest.CaptureFixture[str]) -> None:
    models = ScriptedModels("one ", "two ")
    desk = ChatDesk(store, models, "scripted")
    chat = PlainChat(desk, io.StringIO("count\n/continue\n"))

    class Interrupted(io.StringIO):
        """A terminal on which Ctrl-C is pressed when the first words appear."""

        pressed = False

        def write(self, text: str) -> int:
            if "one" in text and not self.pressed:
                self.pressed = True
                raise KeyboardInterrupt
            return super().write(text)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", Interrupted())
        chat.run()
    assert "stopped; /continue goes on" in capsys.readouterr().err
    assert [message.content for message in desk.messages()] == ["count", "one one two "]


def test_a_mistyped_model_leaves_the_one_before_it_in_use(
    store: ConversationStore, capsys: pytest.CaptureFixture[str]
) -> None:
    models = ScriptedModels("ok")
    models.pull_error = DownloadError("there is no model nonsense")
    desk = ChatDesk(store, models, "scripted")
    PlainChat(desk, io.StringIO("first\n/model nonsense\nsecond\n")).run()
    shown = capsys.readouterr()
    assert shown.out == "ok\nok\n"
    assert shown.err.count("error: ") == 1
    assert [chat.model for chat in store.conversations()] == ["scripted"]
    assert [message.content for message in desk.messages()] == ["first", "ok", "second", "ok"]


def test_a_broken_model_leaves_the_one_before_it_loaded(
    store: ConversationStore, capsys: pytest.CaptureFixture[str]
) -> None:
    models = ScriptedModels("ok")
    desk = ChatDesk(store, models, "scripted")
    models.make = lambda name: ScriptedBackend("no", name=name, load=[RequestError("it is damaged")])
    PlainChat(desk, io.StringIO("/model other\nasked\n")).run()
    shown = capsys.readouterr()
    assert "it is damaged; scripted stays in use" in shown.err
    assert shown.out == "ok\n"


def test_a_chat_whose_model_is_gone(store: ConversationStore, capsys: pytest.CaptureFixture[str]) -> None:
    talk(store, "one\n", "ok", model="middle:8b")
    number = store.conversations(limit=1)[0].id
    models = ScriptedModels("ok")
    desk = ChatDesk(store, models, "scripted")
    desk.open(number)
    PlainChat(desk, io.StringIO("/chats zzzq\n")).run()
    shown = capsys.readouterr().err
    assert "middle:8b is not here; scripted answers" in shown
    assert "nothing found" in shown
    desk = ChatDesk(store, models, "large:70b")
    desk.open(number)
    with pytest.raises(RequestError, match="the chat was held with middle:8b, which is not here"):
        PlainChat(desk, io.StringIO("")).run()
    assert models.pulled == []

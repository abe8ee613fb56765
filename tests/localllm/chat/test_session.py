"""A conversation with a scripted backend: turns, branches, stops, errors and what is on disk at each moment."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripted_chat import Gate, ScriptedBackend

from localllm.chat import AnswerDelta, AnswerFinished, ChatSession, PromptRead
from localllm.conversations import ConversationStore, to_json, to_markdown
from localllm.errors import ExecutionError, RequestError


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ConversationStore]:
    store = ConversationStore(tmp_path / "chats.sqlite3")
    yield store
    store.close()


def session_of(store: ConversationStore, backend: ScriptedBackend, system: str = "") -> ChatSession:
    return ChatSession(store, backend, store.create("scripted", system=system))


def test_a_turn_streams_and_is_kept(store: ConversationStore) -> None:
    backend = ScriptedBackend("<think>h", "m</think>", "Par", "is")
    session = session_of(store, backend, system="Be brief.")
    events = list(session.send("What is the capital\nof France?"))
    assert isinstance(events[0], PromptRead)
    assert "".join(e.text for e in events if isinstance(e, AnswerDelta) and e.kind == "answer") == "Paris"
    end = events[-1]
    assert isinstance(end, AnswerFinished)
    assert (end.reason, end.tokens_per_second, end.prompt_tokens_per_second) == ("stop", 3.0, 4.0)
    question, answer = session.messages()
    assert (question.content, answer.content, answer.reasoning) == ("What is the capital\nof France?", "Paris", "hm")
    assert answer.state == "complete"
    assert answer.figures["tokens"] == 4
    assert backend.seen[0][0] == {"role": "system", "content": "Be brief."}
    assert store.conversation(session.conversation).title == "What is the capital of France?"


def test_the_question_is_kept_before_the_model_says_anything(store: ConversationStore) -> None:
    session = session_of(store, ScriptedBackend("x"))
    session.send("hello")
    assert [m.role for m in session.messages()] == ["user", "assistant"]


def test_stopping_keeps_the_part_as_a_turn_that_can_go_on(store: ConversationStore) -> None:
    backend = ScriptedBackend("one ", "two ", "three")
    session = session_of(store, backend)
    for event in session.send("count"):
        if isinstance(event, AnswerDelta) and event.text == "two ":
            session.stop()
    answer = session.messages()[-1]
    assert (answer.content, answer.state) == ("one two ", "partial")
    assert backend.closed == 1
    backend.pieces = ("three",)
    list(session.resume())
    assert session.messages()[-1].content == "one two three"
    assert backend.seen[-1][-1] == {"role": "assistant", "content": "one two ", "reasoning": ""}


def test_closing_the_iterator_keeps_the_part(store: ConversationStore) -> None:
    session = session_of(store, ScriptedBackend("one ", "two "))
    events = session.send("count")
    for event in events:
        if isinstance(event, AnswerDelta):
            break
    events.close()
    assert session.messages()[-1].content == "one "


def test_an_error_is_told_and_nothing_is_lost(store: ConversationStore) -> None:
    session = session_of(store, ScriptedBackend("half ", ExecutionError("out of luck", hint="try again")))
    end = list(session.send("go"))[-1]
    assert isinstance(end, AnswerFinished)
    assert end.reason == "error"
    assert "out of luck" in (end.error or "")
    assert session.messages()[-1].content == "half "


def test_an_answer_that_failed_before_a_word_is_told_to_no_model(store: ConversationStore) -> None:
    backend = ScriptedBackend(ExecutionError("no luck"))
    session = session_of(store, backend)
    list(session.send("first"))
    assert session.messages()[-1].figures["error"] == "no luck"  # the screen shows it
    backend.pieces = ("yes",)
    list(session.send("second"))
    assert [message["content"] for message in backend.seen[-1]] == ["first", "second"]
    assert "## Assistant\n\nyes" in to_markdown(store, session.conversation)
    assert to_markdown(store, session.conversation).count("## Assistant") == 1
    assert [m["content"] for m in json.loads(to_json(store, session.conversation))["messages"]] == [
        *("first", "second", "yes")
    ]


def test_editing_and_asking_again_make_branches(store: ConversationStore) -> None:
    backend = ScriptedBackend("a")
    session = session_of(store, backend)
    list(session.send("first"))
    question = session.messages()[0].id
    backend.pieces = ("b",)
    list(session.regenerate())
    assert [m.content for m in session.messages()] == ["first", "b"]
    assert [m.content for m in store.branches(session.messages()[-1].id)] == ["a", "b"]
    list(session.edit(question, "second"))
    assert [m.content for m in session.messages()] == ["second", "b"]
    assert [m.content for m in store.branches(session.messages()[0].id)] == ["first", "second"]
    with pytest.raises(RequestError, match="only a question"):
        session.edit(session.messages()[-1].id, "x")


def test_nothing_to_repeat_or_continue_is_said(store: ConversationStore) -> None:
    session = session_of(store, ScriptedBackend("a"))
    with pytest.raises(RequestError, match="no question"):
        session.regenerate()
    with pytest.raises(RequestError, match="no answer"):
        session.resume()


def test_a_stop_before_the_first_event_is_not_forgotten(store: ConversationStore) -> None:
    gate = Gate()
    session = session_of(store, ScriptedBackend("one ", gate, "two"))
    events = session.send("count")
    session.stop()
    assert [event for event in events if isinstance(event, AnswerDelta)] == []
    assert session.messages()[-1].state == "partial"


def test_a_stop_reaches_a_backend_that_waits(store: ConversationStore) -> None:
    gate = Gate()
    session = session_of(store, ScriptedBackend("one ", gate, "two"))
    found: list[object] = []
    worker = threading.Thread(target=lambda: found.extend(session.send("count")))
    worker.start()
    gate.wait_until_reached()
    session.stop()
    worker.join(60)
    end = found[-1]
    assert isinstance(end, AnswerFinished)
    assert (end.reason, end.usage.completion_tokens, end.usage.prompt_tokens) == ("cancelled", 1, 3)
    assert session.messages()[-1].content == "one "


def test_the_conversation_decides_how_to_sample(store: ConversationStore) -> None:
    backend = ScriptedBackend("a")
    backend.sampling = {"top_k": 20, "temperature": 0.6}
    session = session_of(store, backend)
    list(session.send("x"))
    assert backend.sampled[-1] == {"temperature": 0.6, "min_p": 0.05, "top_k": 20}
    store.set_sampling(session.conversation, {"temperature": 0.0})
    list(session.regenerate())
    assert backend.sampled[-1]["temperature"] == 0.0


def test_thinking_that_was_stopped_goes_on_as_thinking(store: ConversationStore) -> None:
    backend = ScriptedBackend("<think>one ")
    session = session_of(store, backend)
    list(session.send("x"))
    backend.pieces = ("two</think>", "three")
    list(session.resume())
    answer = session.messages()[-1]
    assert (answer.reasoning, answer.content) == ("one two", "three")
    assert backend.seen[-1][-1] == {"role": "assistant", "content": "", "reasoning": "one "}

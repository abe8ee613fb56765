"""What the desk does when a chat is left and opened again: saved, restored, refused, freed, in the right order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from scripted_chat import ScriptedBackend
from scripted_models import ScriptedModels

from localllm.chat.desk import ChatDesk
from localllm.conversations import ConversationStore
from localllm.errors import RequestError, SessionError
from localllm.kernels.executor import LoadProgress


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ConversationStore]:
    store = ConversationStore(tmp_path / "chats.sqlite3")
    yield store
    store.close()


def ask(desk: ChatDesk, text: str) -> int:
    assert desk.load(_ignore) == ""
    assert list(desk.send(text))
    assert desk.conversation is not None
    return desk.conversation


def _ignore(_: LoadProgress) -> None:
    pass


def backend(desk: ChatDesk) -> ScriptedBackend:
    assert isinstance(desk.backend, ScriptedBackend)
    return desk.backend


def test_a_chat_that_is_left_is_saved_and_comes_back(store: ConversationStore) -> None:
    desk = ChatDesk(store, ScriptedModels("yes"), "scripted", system="be kind")
    first = ask(desk, "one")
    desk.new()
    assert store.caches.find(first) is None  # that may take time: not here
    second = ask(desk, "two")
    assert store.caches.find(first) is not None
    desk.open(first)
    assert desk.load(_ignore) == ""
    assert store.caches.find(second) is not None
    expected = [("system", "be kind"), ("user", "one"), ("assistant", "yes")]
    assert [(m["role"], m["content"]) for m in backend(desk).restored[-1]] == expected
    assert desk.restore() == ""
    assert len(backend(desk).restored) == 1  # once


def test_closing_saves_what_was_answered_and_nothing_else(store: ConversationStore) -> None:
    models = ScriptedModels("yes")
    desk = ChatDesk(store, models, "scripted")
    first = ask(desk, "one")
    desk.close()
    path = store.caches.find(first)
    assert path is not None
    assert models.opened[0].freed
    path.write_text("[]")
    desk = ChatDesk(store, models, "scripted")
    desk.open(first)
    desk.load(_ignore)
    desk.close()
    assert path.read_text() == "[]"  # nothing new was computed


def test_a_file_that_cannot_be_used_is_said_and_goes(store: ConversationStore) -> None:
    desk = ChatDesk(store, ScriptedModels("yes"), "scripted")
    first = ask(desk, "one")
    store.caches.path(first).write_text("damaged")
    desk.open(first)
    desk._postponed.clear()
    assert desk.load(_ignore) == "the saved session is damaged: the chat is read anew"
    assert store.caches.find(first) is None
    assert desk.load(_ignore) == ""


def test_another_model_is_loaded_after_the_first_is_saved_and_freed(store: ConversationStore) -> None:
    models = ScriptedModels("yes")
    desk = ChatDesk(store, models, "other")
    first = ask(desk, "one")
    desk.new()
    desk.use("scripted")
    assert not models.opened[0].freed
    second = ask(desk, "two")
    assert models.opened[0].freed
    assert store.caches.find(first) is not None
    desk.open(first)
    assert desk.model == "other"
    desk.load(_ignore)
    assert models.opened[1].freed
    assert store.caches.find(second) is not None
    assert len(backend(desk).restored) == 1


def test_what_cannot_or_must_not_be_saved_is_not(tmp_path: Path) -> None:
    models = ScriptedModels("yes")
    store = ConversationStore(tmp_path / "chats.sqlite3", cache_bytes=0)
    desk = ChatDesk(store, models, "scripted")
    first = ask(desk, "one")
    desk.close()
    assert store.caches.find(first) is None
    store.caches.most_bytes = 1000
    desk = ChatDesk(store, models, "scripted")
    second = ask(desk, "two")
    backend(desk).save_error = SessionError("the disk is full")
    desk.delete(first)
    desk.close()
    assert store.caches.find(second) is None
    desk = ChatDesk(store, models, "scripted")
    third = ask(desk, "three")
    desk.delete()
    desk.close()
    assert store.caches.find(third) is None
    store.close()


def test_a_model_that_cannot_be_loaded_leaves_the_one_before_it_in_use(store: ConversationStore) -> None:
    models = ScriptedModels("yes")
    desk = ChatDesk(store, models, "scripted")
    first = ask(desk, "one")
    models.make = lambda name: ScriptedBackend("no", name=name, load=[RequestError("it has no model 'WRONG'")])
    desk.use("WRONG")
    with pytest.raises(RequestError, match="it has no model 'WRONG'; scripted stays in use"):
        desk.load(_ignore)
    assert desk.model == store.conversation(first).model == "scripted"
    assert ask(desk, "two") == first
    assert [message.content for message in desk.messages()] == ["one", "yes", "two", "yes"]
    desk.use("WRONG")
    desk.use("WRONG TOO")
    with pytest.raises(RequestError, match="scripted stays in use"):
        desk.load(_ignore)
    assert desk.model == "scripted"


def test_a_first_model_that_cannot_be_loaded_is_only_an_error(store: ConversationStore) -> None:
    models = ScriptedModels("yes")
    models.make = lambda name: ScriptedBackend("no", name=name, load=[RequestError("broken")])
    desk = ChatDesk(store, models, "scripted")
    with pytest.raises(RequestError, match=r"^broken$"):
        desk.load(_ignore)
    assert desk.model == "scripted"


def test_what_is_asked_for_now_comes_before_what_an_opened_chat_has_kept(store: ConversationStore) -> None:
    models = ScriptedModels("yes")
    first = ask(ChatDesk(store, models, "scripted", system="old", sampling={"max_tokens": 200, "seed": 1}), "one")
    desk = ChatDesk(store, models, "scripted")
    desk.open(first)
    desk.override(None, {})
    assert (desk.system, desk.sampling) == ("old", {"max_tokens": 200, "seed": 1})
    desk.override("new", {"max_tokens": 8})
    assert (desk.system, desk.sampling) == ("new", {"max_tokens": 8, "seed": 1})


def test_a_model_that_is_asked_for_comes_before_that_of_the_opened_chat(store: ConversationStore) -> None:
    models = ScriptedModels("yes")
    first = ask(ChatDesk(store, models, "scripted"), "one")
    desk = ChatDesk(store, models, "other")
    desk.open(first, keep_model=True)
    assert (desk.model, store.conversation(first).model) == ("other", "scripted")
    assert ask(desk, "two") == first
    assert store.conversation(first).model == "other"


def test_the_name_of_a_model_that_was_never_loaded_is_not_kept(store: ConversationStore) -> None:
    models = ScriptedModels("yes")
    first = ask(ChatDesk(store, models, "scripted"), "one")
    models.make = lambda name: ScriptedBackend("no", name=name, load=[RequestError("broken")])
    desk = ChatDesk(store, models, "WRONG")
    desk.open(first, keep_model=True)
    with pytest.raises(RequestError, match="broken"):
        desk.load(_ignore)
    assert store.conversation(first).model == "scripted"

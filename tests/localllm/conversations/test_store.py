"""The chat store: trees of messages, search, the bin, crashes, other versions, several processes."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from held_memory import bytes_in_use
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from localllm.conversations import ConversationStore
from localllm.errors import ConfigurationError, RequestError


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ConversationStore]:
    store = ConversationStore(tmp_path / "folder" / "chats.sqlite3")
    yield store
    store.close()


def test_a_conversation_comes_back_as_written(tmp_path: Path) -> None:
    path = tmp_path / "chats.sqlite3"
    first = ConversationStore(path)
    chat = first.create("smollm2:135m", title="hello", system="be kind", sampling={"temperature": 0.5})
    question = first.add(chat, None, "user", "What is [red]this[/red]?\x1b[2J")
    answer = first.add(chat, question, "assistant", "", state="partial")
    first.write(answer, "An answer", reasoning="hm", state="complete", figures={"tokens": 2})
    first.close()
    second = ConversationStore(path)
    conversation = second.conversation(chat)
    assert (conversation.title, conversation.system, conversation.sampling) == (
        "hello",
        "be kind",
        {"temperature": 0.5},
    )
    messages = second.path_to(conversation.leaf)
    assert [message.content for message in messages] == ["What is [red]this[/red]?\x1b[2J", "An answer"]
    assert messages[1].reasoning == "hm"
    assert messages[1].figures == {"tokens": 2}
    second.close()


def test_branches_keep_every_version(store: ConversationStore) -> None:
    chat = store.create("m")
    one = store.add(chat, None, "user", "one")
    first = store.add(chat, one, "assistant", "first")
    store.add(chat, first, "user", "follow-up")
    second = store.add(chat, one, "assistant", "second")
    assert [m.content for m in store.path_to(store.conversation(chat).leaf)] == ["one", "second"]
    assert [m.content for m in store.branches(second)] == ["first", "second"]
    store.choose(first)
    assert [m.content for m in store.path_to(store.conversation(chat).leaf)] == ["one", "first", "follow-up"]
    edited = store.add(chat, None, "user", "other start")
    assert [m.id for m in store.branches(edited)] == [one, edited]
    store.rewind(chat, None)
    assert store.path_to(store.conversation(chat).leaf) == []


def test_deleted_chats_can_be_restored_until_they_are_purged(store: ConversationStore) -> None:
    chat, other = store.create("m", title="a"), store.create("m", title="b")
    store.add(chat, None, "user", "something findable")
    store.delete(chat)
    assert [c.id for c in store.conversations()] == [other]
    assert [c.id for c in store.conversations(deleted=True)] == [chat]
    assert store.search("findable") == []
    store.restore(chat)
    assert [hit.message for hit in store.search("findable")]
    store.delete(chat)
    assert store.purge() == 1
    with pytest.raises(RequestError, match="no chat number"):
        store.conversation(chat)
    assert store.search("findable") == []


def test_search_marks_the_match_and_survives_any_text(store: ConversationStore) -> None:
    chat = store.create("m")
    message = store.add(chat, None, "user", "The lighthouse of Größe at midnight")
    store.write(message, "The lighthouse of Größe at noon")
    (hit,) = store.search("größe noon")
    assert "\x02Größe\x03" in hit.excerpt
    assert store.search("midnight") == []
    for text in ('"', "a* OR", "NEAR(", "x", "", "-content:abc", "'; DROP TABLE messages;"):
        store.search(text)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(text=st.text(st.characters(codec=None, categories=None), max_size=60))
def test_any_text_is_kept(store: ConversationStore, text: str) -> None:
    chat = store.create("m", title=text + "\ud83d")
    message = store.add(chat, None, "user", text)
    expected = text.encode("utf-8", "replace").decode("utf-8")
    assert store.message(message).content == expected


def test_wrong_use_is_explained(store: ConversationStore) -> None:
    chat, other = store.create("m"), store.create("m")
    message = store.add(chat, None, "user", "x")
    with pytest.raises(RequestError, match="another chat"):
        store.add(other, message, "user", "y")
    with pytest.raises(RequestError, match="no message number 99"):
        store.message(99)
    assert store.path_to(store.conversation(other).leaf) == []


def test_a_newer_format_is_left_untouched(tmp_path: Path) -> None:
    path = tmp_path / "chats.sqlite3"
    database = sqlite3.connect(path)
    database.execute("PRAGMA user_version = 999")
    database.close()
    before = path.read_bytes()
    with pytest.raises(ConfigurationError, match="newer localllm"):
        ConversationStore(path)
    assert path.read_bytes() == before


def test_a_file_that_is_no_database_is_explained(tmp_path: Path) -> None:
    path = tmp_path / "chats.sqlite3"
    path.write_bytes(b"not a database at all" * 100)
    with pytest.raises(ConfigurationError, match="cannot be opened"):
        ConversationStore(path)
    assert path.read_bytes().startswith(b"not a database")


def test_a_killed_process_loses_nothing_that_was_written(tmp_path: Path) -> None:
    path = tmp_path / "chats.sqlite3"
    program = textwrap.dedent(
        """
        import os, signal, sys
        from pathlib import Path
        from localllm.conversations import ConversationStore
        store = ConversationStore(Path(sys.argv[1]))
        chat = store.create("m")
        message = store.add(chat, None, "assistant", "", state="partial")
        for count in range(200):
            store.write(message, "word " * count)
            print(count, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "-c", program, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    last = int(done.stdout.split()[-1])
    store = ConversationStore(path)
    (conversation,) = store.conversations()
    (message,) = store.path_to(conversation.leaf)
    assert message.content == "word " * last
    assert message.state == "partial"
    store.close()


def test_others_on_the_computer_cannot_read_the_chats(tmp_path: Path) -> None:
    store = ConversationStore(tmp_path / "chats.sqlite3")
    store.create("m", title="secret")
    modes = {file.name: file.stat().st_mode & 0o077 for file in tmp_path.glob("chats.sqlite3*")}
    store.close()
    assert modes == dict.fromkeys(["chats.sqlite3", "chats.sqlite3-wal", "chats.sqlite3-shm"], 0)
    store.close()
    (tmp_path / "chats.sqlite3").chmod(0o644)  # as older versions left it
    ConversationStore(tmp_path / "chats.sqlite3").close()
    assert (tmp_path / "chats.sqlite3").stat().st_mode & 0o077 == 0


def test_a_full_disk_is_told_and_over_when_there_is_room(tmp_path: Path) -> None:
    store = ConversationStore(tmp_path / "chats.sqlite3")
    chat = store.create("m")
    message = store.add(chat, None, "user", "kept")
    (pages,) = store._database.execute("PRAGMA page_count").fetchone()
    store._database.execute(f"PRAGMA max_page_count = {pages + 2}")
    for write in (
        lambda: store.add(chat, message, "assistant", "x" * 100_000),
        lambda: store.write(message, "y" * 100_000),
        lambda: store.set_field(chat, "system", "z" * 100_000),
    ):
        with pytest.raises(ConfigurationError, match="cannot be used now: database or disk is full"):
            write()
    assert [turn.content for turn in store.all_messages(chat)] == ["kept"]
    store._database.execute("PRAGMA max_page_count = 1000000")
    assert store.add(chat, message, "assistant", "x" * 100_000) > message
    store.close()


def test_a_store_that_is_closed_or_held_by_another_says_so(tmp_path: Path) -> None:
    store = ConversationStore(tmp_path / "chats.sqlite3")
    chat = store.create("m")
    other = sqlite3.connect(tmp_path / "chats.sqlite3", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    store._database.execute("PRAGMA busy_timeout = 1")
    with pytest.raises(ConfigurationError, match="another program holds the file"):
        store.add(chat, None, "user", "x")
    other.execute("ROLLBACK")
    other.close()
    assert store.add(chat, None, "user", "x")
    store.close()
    with pytest.raises(ConfigurationError, match="cannot be used now"):
        store.create("m")


def test_a_large_file_is_not_kept_in_memory(store: ConversationStore) -> None:
    conversation = store.create("model")
    parent = store.add(conversation, None, "user", "hello")
    before = bytes_in_use()
    for number in range(400):
        parent = store.add(conversation, parent, "user", f"{number} " * 2000)
    assert len(store.path_to(parent)) == 401
    assert store.path.stat().st_size > 2_500_000
    assert bytes_in_use() - before < 1_200_000

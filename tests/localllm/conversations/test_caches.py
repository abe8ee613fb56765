"""Files of what was computed for chats: bounded, the latest stay, gone with their chat."""

from __future__ import annotations

import os
import time
from pathlib import Path

from localllm.conversations import ChatCaches, ConversationStore


def write(caches: ChatCaches, chat: int, size: int, age: float) -> Path:
    path = caches.path(chat)
    path.write_bytes(bytes(size))
    os.utime(path, (time.time() - age, time.time() - age))
    return path


def names(caches: ChatCaches) -> list[str]:
    return sorted(path.name for path in caches.folder.iterdir())


def test_the_latest_that_fit_stay(tmp_path: Path) -> None:
    caches = ChatCaches(tmp_path / "caches", 100)
    for chat, size, age in ((1, 30, 1), (2, 60, 2), (3, 50, 3), (4, 10, 4), (5, 1, 5)):
        write(caches, chat, size, age)
    caches.prune(range(1, 6))
    assert names(caches) == ["1.kv", "2.kv", "4.kv"]
    assert caches.find(2) is not None  # used: it stays longer than a newer one now
    write(caches, 6, 40, 0.5)
    caches.prune(range(1, 7))
    assert names(caches) == ["2.kv", "6.kv"]
    assert caches.find(1) is None
    assert caches.folder.stat().st_mode & 0o077 == 0


def test_what_belongs_to_no_chat_goes(tmp_path: Path) -> None:
    caches = ChatCaches(tmp_path / "caches", 1000)
    write(caches, 1, 10, 0)
    write(caches, 2, 10, 0)
    being_written, left_behind = caches.folder / ".1.kv.abcd", caches.folder / ".1.kv.efgh"
    for path, age in ((being_written, 10), (left_behind, 7200)):
        path.write_bytes(b"half")
        os.utime(path, (time.time() - age, time.time() - age))
    (caches.folder / "notes.txt").write_text("not ours")
    caches.prune([2])
    assert names(caches) == [".1.kv.abcd", "2.kv", "notes.txt"]
    caches.discard(2)
    caches.discard(2)
    assert names(caches) == [".1.kv.abcd", "notes.txt"]


def test_no_budget_and_no_folder(tmp_path: Path) -> None:
    caches = ChatCaches(tmp_path / "caches", 0)
    caches.prune([1])
    assert caches.find(1) is None
    write(caches, 1, 1, 0)
    caches.prune([1])
    assert names(caches) == []


def test_a_deleted_chat_loses_its_file(tmp_path: Path) -> None:
    store = ConversationStore(tmp_path / "chats.sqlite3")
    first, second = store.create("m"), store.create("m")
    for chat in (first, second):
        write(store.caches, chat, 10, 0)
    store.delete(first)
    assert names(store.caches) == [f"{second}.kv"]
    store.prune_caches()
    assert names(store.caches) == [f"{second}.kv"]
    write(store.caches, first, 10, 0)  # by another process that had it open
    store.prune_caches()
    assert names(store.caches) == [f"{second}.kv"]
    store.close()


def test_what_is_old_goes_and_what_went_is_counted(tmp_path: Path) -> None:
    store = ConversationStore(tmp_path / "chats.sqlite3")
    old, new = store.create("m"), store.create("m")
    write(store.caches, old, 10, 7200)
    write(store.caches, new, 20, 0)
    write(store.caches, 999, 5, 0)
    assert store.prune_caches(unused_since=time.time() - 3600) == 15
    assert names(store.caches) == [f"{new}.kv"]
    assert store.prune_caches() == 0
    store.close()

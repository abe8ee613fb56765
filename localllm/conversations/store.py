"""The store: every change is on disk when the call returns (SQLite in WAL mode, https://www.sqlite.org/wal.html)."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import threading
import time
from typing import TYPE_CHECKING, Any, Literal

from localllm.errors import ConfigurationError, RequestError

from .caches import DEFAULT_BYTES, ChatCaches
from .records import Conversation, Message, Role, SearchHit, State
from .schema import check_version, migrate
from .transaction import Transaction, told

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_CONVERSATION = "id, title, model, system, sampling, leaf, created, updated, deleted"
_MESSAGE = "id, conversation, parent, role, content, reasoning, state, created, figures"
_FIELD = Literal["title", "model", "system"]
MAX_TITLE = 200  # characters
MAX_ID = 2**63 - 1  # SQLite's largest integer
CACHES = "chat-caches"  # the folder beside the file
PAGE_CACHE_KIB = 512  # of the file's pages that SQLite keeps; the system has them anyway


class ConversationStore:
    """Chats in one SQLite file. May be used from several threads; several processes may share the file.

    `caches` are the files of what models computed for them, `cache_bytes` in all; a chat that is deleted loses its one.
    Raises ConfigurationError when the file cannot be opened or is no database of ours.
    """

    def __init__(self, path: Path, *, cache_bytes: int = DEFAULT_BYTES) -> None:
        self.path = path
        self.caches = ChatCaches(path.parent / CACHES, cache_bytes)
        self._lock = threading.RLock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            _keep_private(path)
            self._database = sqlite3.connect(path, timeout=10, isolation_level=None, check_same_thread=False)
            version = check_version(self._database, str(path))
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = NORMAL")
            self._database.execute("PRAGMA foreign_keys = ON")
            self._database.execute(f"PRAGMA cache_size = -{PAGE_CACHE_KIB}")
            migrate(self._database, version)
        except (sqlite3.OperationalError, OSError) as error:  # the file may be fine
            reason = error.strerror if isinstance(error, OSError) else error
            raise ConfigurationError(
                f"the chats in {path} cannot be opened: {reason}",
                hint="make the folder writable, or set LOCALLLM_HOME to one that is",
            ) from error
        except sqlite3.Error as error:
            raise ConfigurationError(
                f"the chats in {path} cannot be opened: {error}", hint="move the file away to start with an empty list"
            ) from error

    def close(self) -> None:
        """Close the file; may be called twice."""
        with self._lock:
            self._database.close()

    def create(self, model: str, *, title: str = "", system: str = "", sampling: dict[str, Any] | None = None) -> int:
        """A new, empty conversation; returns its id."""
        now = time.time()
        values = (_text(title)[:MAX_TITLE], model, _text(system), json.dumps(sampling or {}), now, now)
        columns = "title, model, system, sampling, created, updated"
        return self._insert(f"INSERT INTO conversations ({columns}) VALUES (?, ?, ?, ?, ?, ?)", values)

    def conversation(self, identifier: int) -> Conversation:
        """One conversation; RequestError when there is none of this id."""
        row = None
        if abs(identifier) <= MAX_ID:
            row = self._one(f"SELECT {_CONVERSATION} FROM conversations WHERE id = ?", (identifier,))
        if row is None:
            raise RequestError(f"there is no chat number {identifier}")
        return _conversation(row)

    def conversations(self, *, deleted: bool = False, limit: int = 1000) -> list[Conversation]:
        """The newest conversations first; those in the bin with `deleted`."""
        condition = "IS NOT NULL" if deleted else "IS NULL"
        order = "ORDER BY updated DESC, id DESC LIMIT ?"
        query = f"SELECT {_CONVERSATION} FROM conversations WHERE deleted {condition} {order}"
        return [_conversation(row) for row in self._all(query, (limit,))]

    def set_field(self, identifier: int, name: _FIELD, value: str) -> None:
        """Change title, model or system prompt."""
        if name not in ("title", "model", "system"):
            raise RequestError(f"a chat has no field {name!r}")
        text = _text(value)[:MAX_TITLE] if name == "title" else _text(value)
        self._run(f"UPDATE conversations SET {name} = ?, updated = ? WHERE id = ?", (text, time.time(), identifier))

    def set_sampling(self, identifier: int, sampling: dict[str, Any]) -> None:
        """Change the sampling parameters of a conversation."""
        values = (json.dumps(sampling), time.time(), identifier)
        self._run("UPDATE conversations SET sampling = ?, updated = ? WHERE id = ?", values)

    def delete(self, identifier: int) -> None:
        """Put a conversation into the bin; `restore` takes it out, `purge` empties the bin."""
        self.caches.discard(identifier)
        self._run("UPDATE conversations SET deleted = ? WHERE id = ?", (time.time(), identifier))

    def restore(self, identifier: int) -> None:
        """Take a conversation out of the bin."""
        self._run("UPDATE conversations SET deleted = NULL WHERE id = ?", (identifier,))

    def prune_caches(self, *, unused_since: float = 0.0) -> int:
        """Keep what models computed for the chats that are there, and no more of it than is allowed, and not too old.

        Returns the bytes that are free now.
        """
        rows = self._all("SELECT id FROM conversations WHERE deleted IS NULL", ())
        return self.caches.prune((row[0] for row in rows), unused_since=unused_since)

    def purge(self, *, before: float | None = None) -> int:
        """Remove for good what was deleted before a time (None: all of the bin); returns how many."""
        limit = time.time() + 1 if before is None else before
        return self._run("DELETE FROM conversations WHERE deleted < ?", (limit,))

    def add(self, conversation: int, parent: int | None, role: Role, content: str, *, state: State = "complete") -> int:
        """Append a message under `parent` and make it the conversation's end; returns its id."""
        now = time.time()
        with self.transaction():
            if parent is not None and self.message(parent).conversation != conversation:
                raise RequestError(f"message {parent} belongs to another chat")
            columns = "conversation, parent, role, content, state, created"
            values = (conversation, parent, role, _text(content), state, now)
            message = self._insert(f"INSERT INTO messages ({columns}) VALUES (?, ?, ?, ?, ?, ?)", values)
            self._run("UPDATE conversations SET leaf = ?, updated = ? WHERE id = ?", (message, now, conversation))
        return message

    def write(
        self,
        message: int,
        content: str,
        *,
        reasoning: str = "",
        state: State = "partial",
        figures: dict[str, Any] | None = None,
    ) -> None:
        """Replace what a message holds, as an answer grows."""
        values = (_text(content), _text(reasoning), state, json.dumps(figures or {}), message)
        self._run("UPDATE messages SET content = ?, reasoning = ?, state = ?, figures = ? WHERE id = ?", values)

    def message(self, identifier: int) -> Message:
        """One message; RequestError when there is none of this id."""
        row = self._one(f"SELECT {_MESSAGE} FROM messages WHERE id = ?", (identifier,))
        if row is None:
            raise RequestError(f"there is no message number {identifier}")
        return _message(row)

    def path_to(self, message: int | None) -> list[Message]:
        """The messages from the first to this one."""
        if message is None:
            return []
        columns = ", ".join(f"messages.{name.strip()}" for name in _MESSAGE.split(","))
        query = f"""
            WITH RECURSIVE line (id, depth) AS (
                SELECT ?, 0
                UNION ALL
                SELECT messages.parent, depth + 1 FROM messages JOIN line ON messages.id = line.id
                WHERE messages.parent IS NOT NULL
            )
            SELECT {columns} FROM messages JOIN line ON messages.id = line.id ORDER BY line.depth DESC
        """
        return [_message(row) for row in self._all(query, (message,))]

    def all_messages(self, conversation: int) -> list[Message]:
        """Every message of a conversation, on all branches, oldest first."""
        return [
            _message(row)
            for row in self._all(f"SELECT {_MESSAGE} FROM messages WHERE conversation = ? ORDER BY id", (conversation,))
        ]

    def branches(self, message: int) -> list[Message]:
        """The messages that share this one's place, itself included, oldest first."""
        own = self.message(message)
        query = f"SELECT {_MESSAGE} FROM messages WHERE conversation = ? AND parent IS ? ORDER BY id"
        return [_message(row) for row in self._all(query, (own.conversation, own.parent))]

    def place_among_branches(self, message: Message) -> tuple[int, int]:
        """Which of the messages that share its place it is, from 1, and how many they are."""
        query = "SELECT sum(id <= ?), count(*) FROM messages WHERE conversation = ? AND parent IS ?"
        place, count = self._one(query, (message.id, message.conversation, message.parent))
        return place, count

    def choose(self, message: int) -> int:
        """Make the newest line below `message` the conversation's current one; returns its last message."""
        conversation = self.message(message).conversation
        leaf = message
        while (row := self._one("SELECT max(id) FROM messages WHERE parent = ?", (leaf,))) and row[0] is not None:
            leaf = int(row[0])
        self._run("UPDATE conversations SET leaf = ? WHERE id = ?", (leaf, conversation))
        return leaf

    def rewind(self, conversation: int, leaf: int | None) -> None:
        """End the conversation's current line at `leaf` (None: before its first message); nothing is deleted."""
        self._run("UPDATE conversations SET leaf = ? WHERE id = ?", (leaf, conversation))

    def search(self, text: str, *, limit: int = 50) -> list[SearchHit]:
        """Messages that contain all words of `text` (each at least three characters), the best first."""
        words = [word for word in text.split() if len(word) >= 3]
        if not words:
            return []
        query = f"""
            SELECT {", ".join(f"c.{name.strip()}" for name in _CONVERSATION.split(","))}, m.id,
                   snippet(messages_text, 0, char(2), char(3), '…', 24)
            FROM messages_text
            JOIN messages m ON m.id = messages_text.rowid
            JOIN conversations c ON c.id = m.conversation
            WHERE messages_text MATCH ? AND c.deleted IS NULL
            ORDER BY rank LIMIT ?
        """
        quoted = " ".join('"' + word.replace('"', '""') + '"' for word in words)
        return [SearchHit(_conversation(row[:9]), row[9], row[10]) for row in self._all(query, (quoted, limit))]

    def transaction(self) -> Transaction:
        """Several calls in a `with` block are written together or not at all."""
        return Transaction(self._lock, self._database, self.path)

    def _run(self, query: str, values: tuple[Any, ...]) -> int:
        with self._lock, told(self.path):
            return self._database.execute(query, values).rowcount

    def _insert(self, query: str, values: tuple[Any, ...]) -> int:
        with self._lock, told(self.path):
            identifier = self._database.execute(query, values).lastrowid
        if identifier is None:
            raise ConfigurationError(f"the chats in {self.path} could not be written")
        return identifier

    def _one(self, query: str, values: tuple[Any, ...]) -> Any:
        with self._lock, told(self.path):
            return self._database.execute(query, values).fetchone()

    def _all(self, query: str, values: tuple[Any, ...]) -> Iterator[Any]:
        with self._lock, told(self.path):
            return iter(self._database.execute(query, values).fetchall())


def _keep_private(path: Path) -> None:
    """What people write is for nobody else to read, also where an older file or the copy of one says otherwise."""
    for name in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
        with contextlib.suppress(OSError):  # it is not there, or somebody else's, who may have had a reason
            name.chmod(0o600)


def _text(value: str) -> str:
    """Text that SQLite can store: a lone surrogate becomes a question mark."""
    return value.encode("utf-8", "replace").decode("utf-8")


def _conversation(row: Any) -> Conversation:
    fields = list(row)
    fields[4] = json.loads(fields[4])
    return Conversation(*fields)


def _message(row: Any) -> Message:
    fields = list(row)
    fields[8] = json.loads(fields[8])
    return Message(*fields)

"""The database's tables and how an older one becomes a newer one (`PRAGMA user_version` counts the steps)."""

from __future__ import annotations

import sqlite3

from localllm.errors import ConfigurationError

MIGRATIONS = (
    """
    CREATE TABLE conversations (
        id INTEGER PRIMARY KEY,
        title TEXT NOT NULL,
        model TEXT NOT NULL,
        system TEXT NOT NULL,
        sampling TEXT NOT NULL,
        leaf INTEGER REFERENCES messages (id) ON DELETE SET NULL,
        created REAL NOT NULL,
        updated REAL NOT NULL,
        deleted REAL
    );
    CREATE TABLE messages (
        id INTEGER PRIMARY KEY,
        conversation INTEGER NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
        parent INTEGER REFERENCES messages (id) ON DELETE CASCADE,
        role TEXT NOT NULL CHECK (role IN ('system', 'user', 'assistant', 'tool')),
        content TEXT NOT NULL,
        reasoning TEXT NOT NULL DEFAULT '',
        state TEXT NOT NULL CHECK (state IN ('complete', 'partial')),
        created REAL NOT NULL,
        figures TEXT NOT NULL DEFAULT '{}'
    );
    CREATE INDEX messages_of_conversation ON messages (conversation, parent);
    CREATE INDEX conversations_by_time ON conversations (deleted, updated);
    CREATE VIRTUAL TABLE messages_text USING fts5 (content, content='messages', content_rowid='id', tokenize='trigram');
    CREATE TRIGGER messages_inserted AFTER INSERT ON messages BEGIN
        INSERT INTO messages_text (rowid, content) VALUES (new.id, new.content);
    END;
    CREATE TRIGGER messages_deleted AFTER DELETE ON messages BEGIN
        INSERT INTO messages_text (messages_text, rowid, content) VALUES ('delete', old.id, old.content);
    END;
    CREATE TRIGGER messages_updated AFTER UPDATE OF content ON messages BEGIN
        INSERT INTO messages_text (messages_text, rowid, content) VALUES ('delete', old.id, old.content);
        INSERT INTO messages_text (rowid, content) VALUES (new.id, new.content);
    END;
    """,
)


def check_version(connection: sqlite3.Connection, where: str) -> int:
    """The version of a database; ConfigurationError, before anything is written, for that of a newer program."""
    version: int
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > len(MIGRATIONS):
        raise ConfigurationError(
            f"{where} was written by a newer localllm: its format is {version}, this one knows {len(MIGRATIONS)}",
            hint="update localllm, or move the file away to start with an empty list of chats",
        )
    return version


def migrate(connection: sqlite3.Connection, version: int) -> None:
    """Bring a database from `version` to the newest one, each step in one transaction."""
    for number in range(version, len(MIGRATIONS)):
        connection.executescript(f"BEGIN; {MIGRATIONS[number]} PRAGMA user_version = {number + 1}; COMMIT;")

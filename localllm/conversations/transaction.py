"""Statements that belong together, and what is said when the database refuses one."""

from __future__ import annotations

import contextlib
import sqlite3
from typing import TYPE_CHECKING

from localllm.errors import ConfigurationError

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator
    from pathlib import Path

_HINTS = {
    sqlite3.SQLITE_FULL: "the disk is full: free some space, then go on",
    sqlite3.SQLITE_BUSY: "another program holds the file: close it, then go on",
    sqlite3.SQLITE_READONLY: "the file or its folder may not be written to",
    sqlite3.SQLITE_CORRUPT: "the file is damaged: move it away to start with an empty list of chats",
    sqlite3.SQLITE_NOTADB: "the file is damaged: move it away to start with an empty list of chats",
}


@contextlib.contextmanager
def told(path: Path) -> Iterator[None]:
    """SQLite's errors as ours: ConfigurationError, with what to do about it."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        raise ConfigurationError(f"the chats in {path} cannot be used now: {error}", hint=_HINTS.get(code)) from error


class Transaction:
    """Several statements that are written together or not at all."""

    def __init__(self, lock: threading.RLock, database: sqlite3.Connection, path: Path) -> None:
        self._lock = lock
        self._database = database
        self._path = path
        self._inner = False

    def __enter__(self) -> None:
        self._lock.acquire()
        self._inner = self._database.in_transaction
        try:
            if not self._inner:
                with told(self._path):
                    self._database.execute("BEGIN IMMEDIATE")
        except BaseException:
            self._lock.release()
            raise

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            if not self._inner and self._database.in_transaction:  # SQLite itself ends one on a full disk
                with told(self._path):
                    self._database.execute("COMMIT" if kind is None else "ROLLBACK")
        finally:
            self._lock.release()

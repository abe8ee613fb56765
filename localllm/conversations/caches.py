"""Files of what a model computed for a chat: it goes on without reading everything again. All may be deleted."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

DEFAULT_BYTES = 2 << 30
SUFFIX = ".kv"
ABANDONED = 3600.0  # seconds after which a half-written file is nobody's any more


class ChatCaches:
    """One file a chat in one folder, `most_bytes` together (0: none); those that were used last stay."""

    def __init__(self, folder: Path, most_bytes: int = DEFAULT_BYTES) -> None:
        self.folder = folder
        self.most_bytes = most_bytes

    def path(self, conversation: int) -> Path:
        """Where the file of a chat is, or would be; its folder exists afterwards where that is allowed."""
        with contextlib.suppress(OSError):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self.folder / f"{conversation}{SUFFIX}"

    def find(self, conversation: int) -> Path | None:
        """The file of a chat, when there is one; it counts as used now."""
        path = self.folder / f"{conversation}{SUFFIX}"
        try:
            os.utime(path)
        except OSError:
            return path if path.is_file() else None
        return path

    def discard(self, conversation: int) -> None:
        """The chat has no file any more."""
        with contextlib.suppress(OSError):
            (self.folder / f"{conversation}{SUFFIX}").unlink(missing_ok=True)

    def prune(self, chats: Iterable[int], *, unused_since: float = 0.0) -> int:
        """Keep the files of these chats only, and of them the latest that fit into `most_bytes`; returns bytes freed.

        `unused_since`: what was not used after that time (Unix, seconds) goes too.
        """
        names = {f"{chat}{SUFFIX}" for chat in chats}
        files = []
        freed = 0
        for path in self._files():
            try:
                status = path.stat()
            except OSError:
                continue  # another process was quicker
            if path.name in names and status.st_mtime >= unused_since:
                files.append((status.st_mtime, status.st_size, path))
            elif path.name.startswith(".") and time.time() - status.st_mtime < ABANDONED:
                continue  # another process is writing it
            else:
                freed += self._remove(path)
        left = self.most_bytes
        for _, size, path in sorted(files, reverse=True):
            if size <= left:
                left -= size
            else:
                freed += self._remove(path)
        return freed

    def _files(self) -> list[Path]:
        try:
            return [path for path in self.folder.iterdir() if path.suffix == SUFFIX or f"{SUFFIX}." in path.name]
        except OSError:
            return []

    @staticmethod
    def _remove(path: Path) -> int:
        try:
            size = path.stat().st_size
            path.unlink()
        except OSError:
            return 0  # another process was quicker, or the folder may not be changed
        return size

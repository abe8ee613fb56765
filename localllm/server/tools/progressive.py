"""Calls that are JSON objects, told while they are written: the name first, then the arguments as they come."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from localllm.server.parts import CallArguments, CallBegun

if TYPE_CHECKING:
    from localllm.server.parts import CallEvent

_TEXT = r'"(?:[^"\\]|\\.)*"'


class CallScanner:
    """Reads the text between a marker and its end. Only objects whose name stands before their arguments are told
    early; `rest` is what was not told, for the reader of whole calls."""

    def __init__(self, name_key: str = "name", arguments_keys: tuple[str, ...] = ("arguments", "parameters")) -> None:
        keys = "|".join(re.escape(key) for key in arguments_keys)
        self._begin = re.compile(
            rf'[\s\[\],;}}]*(?:<\|python_tag\|>\s*)?\{{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"{re.escape(name_key)}"\s*:\s*({_TEXT})\s*,'
            rf'\s*"(?:{keys})"\s*:\s*(?=\{{)'
        )
        self.rest = ""
        self.begun = False
        self._depth = 0  # of brackets; 0: between calls
        self._behind = False  # the arguments are over, their call's object is not
        self._in_text = self._escaped = False

    def push(self, text: str) -> list[CallEvent]:
        """What this text adds to the calls."""
        self.rest += text
        found: list[CallEvent] = []
        while self.rest:
            if not self._depth:
                match = self._begin.match(self.rest)
                name = None if match is None else _name(match[1])
                if match is None or not name or len(self.rest) == match.end():
                    return found
                found.append(CallBegun(name))
                self.begun, self._depth, self._behind = True, 1, False
                found.append(CallArguments("{"))
                self.rest = self.rest[match.end() + 1 :]
                continue
            taken = self._inside()
            if not self._behind:
                found.append(CallArguments(self.rest[:taken]))
            self.rest = self.rest[taken:]
            if not self._depth and not self._behind:
                self._depth, self._behind = 1, True  # the object around the arguments is still open
        return found

    def reset(self) -> str:
        """Begin anew; returns what was not told."""
        rest, self.rest = self.rest, ""
        self.begun = self._in_text = self._escaped = False
        self._depth, self._behind = 0, False
        return rest

    def _inside(self) -> int:
        """How many letters of `rest` belong to the object that is open."""
        for place, letter in enumerate(self.rest):
            if self._in_text:
                if self._escaped:
                    self._escaped = False
                elif letter == "\\":
                    self._escaped = True
                elif letter == '"':
                    self._in_text = False
            elif letter == '"':
                self._in_text = True
            elif letter in "{[":
                self._depth += 1
            elif letter in "}]":
                self._depth -= 1
                if not self._depth:
                    return place + 1
        return len(self.rest)


def _name(text: str) -> str:
    try:
        name = json.loads(text)
    except ValueError:
        return ""
    return name if isinstance(name, str) else ""

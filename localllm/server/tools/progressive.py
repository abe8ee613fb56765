"""Calls whose arguments are a JSON object, told while they are written: the name first, then the arguments."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from localllm.server.parts import CallArguments, CallBegun

if TYPE_CHECKING:
    from localllm.server.parts import CallEvent

_TEXT = r'"(?:[^"\\]|\\.)*"'
_AROUND = r"[\s\[\],;}`]*"  # what may stand between calls and is none


@dataclass(frozen=True, slots=True)
class CallForm:
    """One way to write a call. `begin` matches all up to the arguments' opening brace, the name in a group (plain, or
    as JSON text); `enclosed`: the arguments lie in an object that ends after them."""

    begin: re.Pattern[str]
    enclosed: bool


def json_form(name_key: str = "name", before: str = "") -> CallForm:
    """An object with the name before the arguments; `before` (a pattern) may stand in front of the first one."""
    first = rf'(?:"(?:type|id|index|tool_call_id)"\s*:\s*(?:{_TEXT}|\d+)\s*,\s*)*'
    name = rf'"{re.escape(name_key)}"\s*:\s*({_TEXT})\s*,'
    arguments = r'\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
    return CallForm(re.compile(rf"{before}{_AROUND}\{{\s*{first}{name}{arguments}"), enclosed=True)


class CallScanner:
    """Reads the text between a marker and its end. Only calls of the given forms are told early; `rest` is what was
    not told, for the reader of whole calls. `around` matches what may stand between and after calls; calls of the
    functions in `silent` are read and not told."""

    def __init__(
        self, forms: tuple[CallForm, ...], around: str = _AROUND, silent: frozenset[str] = frozenset()
    ) -> None:
        self._forms = forms
        self._around = re.compile(around)
        self.early = True  # False: the reader asks only about a call that was cut
        self._silent = silent
        self.rest = ""
        self.begun = False
        self._told = True  # the call that is being read
        self._enclosed = True
        self._depth = 0  # of brackets; 0: between calls
        self._behind = False  # the arguments are over, their call's object is not
        self._in_text = self._escaped = False

    def push(self, text: str) -> list[CallEvent]:
        """What this text adds to the calls."""
        self.rest += text
        found: list[CallEvent] = []
        while self.rest:
            if not self._depth:
                name = self._begin()
                if name is None:
                    return found
                self._told = name not in self._silent
                if self._told:
                    found += [CallBegun(name), CallArguments("{")]
                continue
            taken = self._inside()
            if self._told and not self._behind and taken:
                found.append(CallArguments(self.rest[:taken]))
            self.rest = self.rest[taken:]
            if not self._depth and not self._behind and self._enclosed:
                self._depth, self._behind = 1, True  # the object around the arguments is still open
        return found

    def _begin(self) -> str | None:
        """The name of the call that begins here, behind whose opening brace `rest` then goes on."""
        for form in self._forms:
            match = form.begin.match(self.rest)
            name = None if match is None else _name(next(group for group in match.groups() if group is not None))
            if match is not None and name and len(self.rest) > match.end():
                self.begun, self._depth, self._behind, self._enclosed = True, 1, False, form.enclosed
                self.rest = self.rest[match.end() + 1 :]
                return name
        return None

    def is_over(self, rest: str) -> bool:
        """Whether only what may stand around calls is left."""
        return self._around.fullmatch(rest) is not None

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
    if not text.startswith('"'):
        return text.strip()
    try:
        name = json.loads(text)
    except ValueError:
        return ""
    return name if isinstance(name, str) else ""

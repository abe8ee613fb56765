"""gpt-oss: an answer is a row of messages on channels (https://github.com/openai/harmony)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from localllm.server.parts import CallArguments, CallBegun, CallPart, TextPart

if TYPE_CHECKING:
    from localllm.server.parts import Part

SIGN = "<|channel|>"
MARKERS = ("<|channel|>", "<|message|>", "<|end|>", "<|start|>", "<|call|>", "<|return|>", "<|constrain|>")
_ENDS = re.compile(r"<\|(?:end|call|return|start|channel)\|>")
_TAG = re.compile(r"<(?:\|[a-z]*\|?)?$")


class HarmonyReader:
    """Thinking is what stands on the analysis channel; calls are messages to a function; the rest is text.

    `progressive`: calls are told while they are written.
    """

    def __init__(self, *, progressive: bool = False) -> None:
        self._progressive = progressive
        self._told = False  # the call that is being written
        self._held = ""
        self._header: str | None = ""  # None: inside a message's body
        self._channel = "final"
        self._recipient: str | None = None
        self._arguments = ""

    def push(self, text: str) -> list[Part]:
        """What is certain now."""
        self._held += text
        parts: list[Part] = []
        while self._advance(parts):
            pass
        return parts

    def flush(self, *, cut: bool = False) -> list[Part]:
        """The rest; a call without its end is told as far as it came."""
        parts: list[Part] = []
        if self._header is None:
            self._body(self._held, parts)
            self._close(parts)
        elif self._held and not self._held.startswith(MARKERS):
            parts.append(TextPart("content", self._held))
        self._held = ""
        return parts

    def _advance(self, parts: list[Part]) -> bool:
        if self._header is not None:
            return self._read_header()
        match = _ENDS.search(self._held)
        if match is None:
            partial = _TAG.search(self._held)
            safe = len(self._held) if partial is None else partial.start()
            self._body(self._held[:safe], parts)
            self._held = self._held[safe:]
            return False
        self._body(self._held[: match.start()], parts)
        self._close(parts)
        begins = match[0] in ("<|channel|>", "<|start|>")
        self._held = self._held[match.start() if begins else match.end() :]
        self._header = ""
        return True

    def _read_header(self) -> bool:
        begun = self._held.lstrip()
        headed = any(begun.startswith(mark) or mark.startswith(begun) for mark in ("<|channel|>", "<|start|>", "to="))
        if begun and not headed:
            self._header, self._channel, self._recipient = None, "final", None
            return True
        header, found, rest = self._held.partition("<|message|>")
        if not found:
            return False
        channel = re.search(r"<\|channel\|>\s*(\w+)", header)
        recipient = re.search(r"to=(?:functions\.)?([\w.-]+)", header)
        self._channel = channel[1] if channel else "final"
        self._recipient = recipient[1] if recipient else None
        self._header, self._held, self._arguments = None, rest, ""
        return True

    def _body(self, text: str, parts: list[Part]) -> None:
        if not text:
            return
        if self._recipient is not None and self._progressive:
            if not self._told:
                parts.append(CallBegun(self._recipient))
                self._told, text = True, text.lstrip()
            parts.append(CallArguments(text))
        elif self._recipient is not None:
            self._arguments += text
        else:
            parts.append(TextPart("reasoning" if self._channel == "analysis" else "content", text))

    def _close(self, parts: list[Part]) -> None:
        if self._recipient is not None and not self._told:
            parts.append(CallPart(self._recipient, self._arguments.strip()))
        self._recipient, self._arguments, self._told = None, "", False

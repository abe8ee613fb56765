"""What the terminal sends, with every paste taken as text: nothing inside one can press a key or send a question.

A terminal puts ESC [ 200 ~ and ESC [ 201 ~ around a paste that the program asked to be marked
(https://invisible-island.net/xterm/ctlseqs/ctlseqs.html#h2-Bracketed-Paste-Mode). Textual goes on looking for keys and
mouse events in between, so escape characters are made signs before it sees them.
"""

from __future__ import annotations

import os
import selectors
from codecs import getincrementaldecoder
from typing import TYPE_CHECKING

from textual._xterm_parser import BRACKETED_PASTE_END, BRACKETED_PASTE_START, XTermParser
from textual.drivers.linux_driver import LinuxDriver

if TYPE_CHECKING:
    from collections.abc import Iterable

    from textual.message import Message

ESCAPE, ESCAPE_SIGN = "\x1b", "␛"
LARGEST_READ = 1 << 16  # bytes
TICK = 0.1  # seconds between looks for an escape key that nothing followed


class PasteFilter:
    """Replaces the escape characters of pastes; a piece of the stream may end anywhere, also inside a mark."""

    def __init__(self) -> None:
        self._inside = False
        self._held = ""  # inside a paste: what may be the beginning of its end
        self._tail = ""  # outside: what may be the beginning of a paste; it was passed on already

    def push(self, text: str) -> str:
        """The next piece as it may be parsed."""
        out: list[str] = []
        while text:
            text = self._in_paste(text, out) if self._inside else self._outside(text, out)
        return "".join(out)

    def _outside(self, text: str, out: list[str]) -> str:
        before = len(self._tail)
        whole = self._tail + text
        place = whole.find(BRACKETED_PASTE_START)
        if place < 0:
            self._tail = _beginning(whole, BRACKETED_PASTE_START)
            out.append(text)
            return ""
        end = place + len(BRACKETED_PASTE_START) - before
        out.append(text[:end])
        self._inside, self._tail = True, ""
        return text[end:]

    def _in_paste(self, text: str, out: list[str]) -> str:
        whole, self._held = self._held + text, ""
        place = whole.find(BRACKETED_PASTE_END)
        if place < 0:
            self._held = _beginning(whole, BRACKETED_PASTE_END)
            out.append(whole[: len(whole) - len(self._held)].replace(ESCAPE, ESCAPE_SIGN))
            return ""
        out += [whole[:place].replace(ESCAPE, ESCAPE_SIGN), BRACKETED_PASTE_END]
        self._inside = False
        return whole[place + len(BRACKETED_PASTE_END) :]


def _beginning(text: str, mark: str) -> str:
    """The longest end of `text` that a mark could begin with."""
    return next((mark[:length] for length in range(len(mark) - 1, 0, -1) if text.endswith(mark[:length])), "")


class TerminalDriver(LinuxDriver):
    """Textual's driver with the filter in front of its parser; bytes that are no UTF-8 do not end the app."""

    def run_input_thread(self) -> None:
        """Read until the app leaves application mode."""
        parser, pastes = XTermParser(self._debug), PasteFilter()
        decoder = getincrementaldecoder("utf-8")("replace")
        with selectors.DefaultSelector() as selector:
            selector.register(self.fileno, selectors.EVENT_READ)
            while not self.exit_event.is_set():
                if selector.select(TICK):
                    data = os.read(self.fileno, LARGEST_READ)
                    if not data:  # a closed terminal would be readable for ever
                        self.exit_event.wait(TICK)
                    text = pastes.push(decoder.decode(data))
                    self._process(parser.feed(text) if text else ())
                self._process(parser.tick())

    def _process(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self.process_message(message)

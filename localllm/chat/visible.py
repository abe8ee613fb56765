"""Untrusted text made harmless for a terminal, with nothing hidden: control characters are shown as signs.

Text of models, files and servers may hold escape sequences that move the cursor, set the clipboard (OSC 52), make links
(OSC 8) or reorder lines (bidirectional overrides, https://trojansource.codes). None of them may reach the terminal.
"""

from __future__ import annotations

import re

TAB_SIZE = 4

_REORDERING = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff"
_HARMFUL = re.compile(f"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff{_REORDERING}]")


def visible(text: str) -> str:
    """`text` with line ends as `\\n`, tabs kept, and every other control character as a sign or a code."""
    if "\r" in text:
        text = text.replace("\r\n", "\n")
    if text.isascii() and text.isprintable():
        return text
    return _HARMFUL.sub(_sign, text)


def visible_line(text: str, limit: int = 200) -> str:
    """The same on one line, for names and titles, cut to `limit` characters."""
    line = " ".join(visible(text[: 4 * limit]).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def counted(count: int, name: str) -> str:
    """A number and a noun: 1 word, 2 words."""
    return f"{count:,} {name}{'' if count == 1 else 's'}"


def short_name(model: str) -> str:
    """A model's name as titles show it: a path without its folders and ending."""
    name = model.rsplit("/", 1)[-1] if model.endswith(".gguf") else model
    return visible_line(name.removesuffix(".gguf"), 60)


def _sign(match: re.Match[str]) -> str:
    character = match[0]
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)  # control pictures: ␛ for escape
    if code == 0x7F:
        return "\u2421"
    if character in "\u2028\u2029":
        return "\n"
    if 0xD800 <= code <= 0xDFFF:
        return "\ufffd"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"

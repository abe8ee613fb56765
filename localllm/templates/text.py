"""Strings that remember which of their parts the template wrote: those may hold control tokens, messages may not.

Only operations that are known to keep the two apart give such a string; whatever else happens to it gives an ordinary
one, which counts as untrusted from end to end.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import SupportsIndex

Spans = tuple[tuple[int, int], ...]
"""Start and end of trusted parts: in order, not empty, not touching."""


class Text(str):
    """A string with trusted parts; equal to, and hashed as, the ordinary string of the same letters."""

    __slots__ = ("trusted",)
    trusted: Spans

    def __new__(cls, letters: str, trusted: Spans) -> Text:
        """The letters, and which of them are trusted."""
        text = super().__new__(cls, letters)
        text.trusted = trusted
        return text

    def __str__(self) -> str:
        return self  # str(value) is how Jinja passes a value on

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        if not isinstance(key, slice):
            return super().__getitem__(key)
        start, stop, step = key.indices(len(self))
        return cut(self, start, stop) if step == 1 else plain(self)[key]


def plain(text: str) -> str:
    """The ordinary string of the same letters."""
    return str.__str__(text)


def trust(letters: str) -> Text:
    """A string that the template, or we, wrote."""
    return Text(letters, ((0, len(letters)),) if letters else ())


def spans(text: str) -> Spans:
    """The trusted parts of any string."""
    return text.trusted if isinstance(text, Text) else ()


def is_trusted(text: str) -> bool:
    """Whether no letter of it comes from a message."""
    return not text or spans(text) == ((0, len(text)),)


def cut(text: str, start: int, end: int) -> str:
    """`text[start:end]`, with 0 <= start and any end."""
    letters = plain(text)[start:end]
    kept = []
    for trusted_start, trusted_end in spans(text):
        first, last = max(trusted_start - start, 0), min(trusted_end - start, len(letters))
        if first < last:
            kept.append((first, last))
    return Text(letters, tuple(kept))


def join(parts: Iterable[str]) -> Text:
    """All parts, one after the other."""
    letters = []
    trusted: list[tuple[int, int]] = []
    position = 0
    for part in parts:
        letters.append(part)
        for start, end in spans(part):
            if trusted and trusted[-1][1] == position + start:
                trusted[-1] = (trusted[-1][0], position + end)
            else:
                trusted.append((position + start, position + end))
        position += len(part)
    return Text("".join(letters), tuple(trusted))

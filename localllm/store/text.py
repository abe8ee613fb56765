"""Text from files, servers and users made safe and short for a terminal."""

from __future__ import annotations

import difflib
import unicodedata
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

if TYPE_CHECKING:
    from collections.abc import Iterable

# format characters that reorder or hide text; joiners of emoji and scripts stay
_REORDERING = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff")


def printable(text: str, limit: int = 500) -> str:
    """`text` on one line without control, reordering and surrogate characters, cut to `limit` characters.

    Names, metadata and server messages are untrusted: an escape sequence in one of them could redraw the terminal.
    """
    kept = []
    for character in text[: 4 * limit]:
        if character in "\n\t\r\u2028\u2029":
            kept.append(" ")
        elif unicodedata.category(character) not in ("Cc", "Cs") and character not in _REORDERING:
            kept.append(character)
    line = "".join(kept)
    return line if len(line) <= limit else line[: limit - 1] + "…"


def printable_block(text: str, limit: int = 100_000) -> str:
    """The same for text of several lines: line feeds and tabs stay."""
    lines = text[:limit].replace("\r\n", "\n").split("\n")
    return "\n".join("\t".join(printable(cell, limit) for cell in line.split("\t")) for line in lines)


def shown_url(url: str) -> str:
    """A URL for messages: without user, password, query and fragment, which may hold secrets."""
    parts = urlsplit(url)
    if not parts.netloc:
        return printable(url.split("?")[0].split("#")[0])
    host = parts.netloc.rpartition("@")[2]
    return printable(urlunsplit((parts.scheme, host, parts.path, "", "")))


def format_bytes(count: float) -> str:
    """Decimal units as disks and download pages use them: 98.4 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def format_seconds(seconds: float) -> str:
    """Rounded for people: 45 s, 3 min 20 s, 2 h 5 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def nearest(name: str, candidates: Iterable[str], count: int = 3) -> list[str]:
    """The candidates most like `name`, best first; parts of a name count too (`qwen` finds `qwen3:4b`)."""
    known = list(dict.fromkeys(candidates))
    wanted = name.lower()[:200]
    family = wanted.partition(":")[0]
    close = _ranked(wanted, known, known, 0.6)
    related = _ranked(family, known, [candidate.partition(":")[0] for candidate in known], 0.7)
    partial = [candidate for candidate in known if len(family) > 2 and family in candidate.lower()]
    return list(dict.fromkeys([*close, *related, *partial]))[:count]


def _ranked(wanted: str, candidates: list[str], texts: list[str], cutoff: float) -> list[str]:
    """Candidates whose text is like `wanted`, best first; equals keep their order."""
    matcher = difflib.SequenceMatcher(b=wanted)
    scored = []
    for candidate, text in zip(candidates, texts, strict=True):
        matcher.set_seq1(text.lower())
        if matcher.real_quick_ratio() >= cutoff and matcher.quick_ratio() >= cutoff and matcher.ratio() >= cutoff:
            scored.append((-matcher.ratio(), candidate))
    return [candidate for _, candidate in sorted(scored, key=lambda pair: pair[0])]


def nearest_hint(name: str, candidates: Iterable[str]) -> str:
    """`did you mean a, b?` or an empty text."""
    found = nearest(name, candidates)
    return f"did you mean {', '.join(found)}?" if found else ""

"""Rows: lines as wide as the screen, with styles by name, so that a theme is applied only to what is looked at."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.cells import cell_len, split_graphemes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Span = tuple[int, int, str]  # characters from, to, and the name of a style

_WORDS = re.compile(r"\S+|\s+")


@dataclass(frozen=True, slots=True)
class Styled:
    """A text of any length (`\\n` breaks a line) with styles."""

    text: str
    spans: tuple[Span, ...] = ()


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a screen.

    `fill` styles the whole line. The first `margin` characters are layout and are not copied. `joined`: the text goes
    on in the next row, with `joined` between them when copied. `actions` are ranges that do something when clicked.
    """

    text: str
    spans: tuple[Span, ...] = ()
    fill: str = ""
    margin: int = 0
    joined: str | None = None
    actions: tuple[Span, ...] = ()

    def shifted(self, prefix: str, style: str = "", *, fill: str | None = None) -> Row:
        """The row behind a prefix, which is layout."""
        by = len(prefix)
        spans = _moved(self.spans, by)
        if style:
            spans = ((0, by, style), *spans)
        fill = self.fill if fill is None else fill
        return Row(prefix + self.text, spans, fill, self.margin + by, self.joined, _moved(self.actions, by))


def _moved(spans: tuple[Span, ...], by: int) -> tuple[Span, ...]:
    return tuple((start + by, end + by, name) for start, end, name in spans)


def cells(text: str) -> int:
    """Columns that a text takes on a terminal."""
    return len(text) if text.isascii() else cell_len(text)


def wrap(styled: Styled, width: int) -> list[Row]:
    """Break a text into rows of at most `width` columns, between words where that is possible."""
    width = max(1, width)
    rows: list[Row] = []
    offset = 0
    for line in styled.text.split("\n"):
        for start, end, joined in _breaks(line, width):
            spans = _cut(styled.spans, offset + start, offset + end) if styled.spans else ()
            rows.append(Row(line[start:end], spans, joined=joined))
        offset += len(line) + 1
    return rows


def chop(text: str, width: int) -> list[tuple[int, int]]:
    """Ranges of at most `width` columns each, whatever the words."""
    width = max(1, width)
    if text.isascii():
        return [(start, min(start + width, len(text))) for start in range(0, max(1, len(text)), width)]
    found, start, used = [], 0, 0
    graphemes, _ = split_graphemes(text)
    for begin, _end, size in graphemes:
        if used + size > width and begin > start:
            found.append((start, begin))
            start, used = begin, 0
        used += size
    return [*found, (start, len(text))]


def _cut(spans: Sequence[Span], start: int, end: int) -> tuple[Span, ...]:
    return tuple(
        (max(first, start) - start, min(last, end) - start, name)
        for first, last, name in spans
        if first < end and last > start
    )


def _breaks(line: str, width: int) -> Iterator[tuple[int, int, str | None]]:
    """Where a line is broken: (from, to, what stands between this row and the next one)."""
    if cells(line) <= width:
        yield 0, len(line), None
        return
    start = used = 0
    end = 0  # of the last word on the present row
    for begin, stop, size in _pieces(line, width):
        space = line[begin].isspace()
        if used + size > width and not space and begin > start:
            yield start, end, " " if end < begin else ""
            start, used = begin, 0
        used += size
        if not space:
            end = stop
    yield start, max(end, start), None


def _pieces(line: str, width: int) -> Iterator[tuple[int, int, int]]:
    """Words, runs of spaces and single wide characters, each with its columns; long words are chopped."""
    for match in _WORDS.finditer(line):
        word, begin = match[0], match.start()
        if word.isascii():
            if len(word) <= width:
                yield begin, match.end(), len(word)
            else:
                yield from ((begin + a, begin + b, b - a) for a, b in chop(word, width))
            continue
        graphemes, total = split_graphemes(word)
        if total <= width and all(size < 2 for _, _, size in graphemes):
            yield begin, match.end(), total
            continue
        run_start, run_size = None, 0
        for a, b, size in graphemes:  # a row may be broken beside every wide character
            narrow = size < 2
            if run_start is not None and (not narrow or run_size + size > width):
                yield begin + run_start, begin + a, run_size
                run_start, run_size = None, 0
            if narrow:
                run_start = a if run_start is None else run_start
                run_size += size
            else:
                yield begin + a, begin + b, size
        if run_start is not None:
            yield begin + run_start, match.end(), run_size

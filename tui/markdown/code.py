"""Code blocks: lines that are appended one by one, coloured now and then, so that the cost stays linear."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from .row import Row, Span, cells, chop

if TYPE_CHECKING:
    from collections.abc import Iterator

TAB = 4
GROWTH = 1.5  # a growing block is coloured anew when it has grown by this factor: at most three times its length in all
FIRST_COLOURS = 8  # lines
LONGEST_COLOURED = 200_000  # characters; longer blocks stay plain

# the first entry that a token type lies under wins (names of pygments.token)
_STYLES = (
    ("Comment", "code-comment"),
    ("Keyword", "code-keyword"),
    ("Operator.Word", "code-keyword"),
    ("Literal.String", "code-string"),
    ("Literal.Number", "code-number"),
    ("Name.Function", "code-function"),
    ("Name.Class", "code-function"),
    ("Name.Decorator", "code-function"),
    ("Name.Builtin", "code-builtin"),
    ("Name.Tag", "code-keyword"),
    ("Name.Attribute", "code-function"),
    ("Generic.Inserted", "code-string"),
    ("Generic.Deleted", "code-error"),
    ("Generic.Heading", "code-function"),
)


class CodeBlock:
    """Lines of code in one language. `rows` of unchanged lines are kept from one call to the next."""

    def __init__(self, language: str = "", lines: list[str] | None = None, *, finished: bool = True) -> None:
        self.language = language.split()[0] if language.split() else ""
        self._source = list(lines or ())
        self._shown = [_expanded(line) for line in self._source]
        self._partial = ""
        self._spans: list[tuple[Span, ...]] = []
        self._next_colours = FIRST_COLOURS
        self._finished = finished
        self._width = 0
        self._rows: list[Row] = []
        self._rows_of = 0  # lines that `_rows` stand for

    @property
    def text(self) -> str:
        """The code as it came."""
        lines = [*self._source, self._partial] if self._partial else self._source
        return "\n".join(lines)

    def append(self, line: str) -> None:
        """A whole line."""
        self._partial = ""
        self._source.append(line)
        self._shown.append(_expanded(line))

    def set_partial(self, text: str) -> None:
        """What there is of the line that is being written."""
        self._partial = text

    def finish(self) -> None:
        """No more lines will come."""
        if self._partial:
            self.append(self._partial)
        self._finished = True

    def rows(self, width: int, number: int) -> list[Row]:
        """The block's rows under a line with its language; `number` is its place among the answer's code blocks."""
        if width != self._width:
            self._width, self._rows, self._rows_of = width, [], 0
        self._colour()
        for index in range(self._rows_of, len(self._shown)):
            spans = self._spans[index] if index < len(self._spans) else ()
            self._rows += self._rows_of_line(self._shown[index], spans)
        self._rows_of = len(self._shown)
        last = list(self._rows_of_line(_expanded(self._partial), ())) if self._partial else []
        return [_header(self.language, width, number), *self._rows, *last, Row("", fill="code")]

    def _rows_of_line(self, line: str, spans: tuple[Span, ...]) -> Iterator[Row]:
        room = max(1, self._width - 2)
        if cells(line) <= room:
            yield Row(line, spans, "code").shifted(" ")
            return
        ranges = chop(line, room)
        for number, (start, end) in enumerate(ranges):
            own = tuple((max(a, start) - start, min(b, end) - start, n) for a, b, n in spans if a < end and b > start)
            row = Row(line[start:end], own, "code", joined="" if number < len(ranges) - 1 else None)
            yield row.shifted(" ")

    def _colour(self) -> None:
        lines = len(self._shown)
        due = lines > len(self._spans) if self._finished else lines >= self._next_colours
        if not due:
            return
        self._next_colours = int(lines * GROWTH) + 1
        coloured = colours(self._shown, self.language)
        if coloured:
            self._spans, self._rows, self._rows_of = coloured, [], 0


def colours(lines: list[str], language: str) -> list[tuple[Span, ...]]:
    """Spans of each line; empty when the language is not known or the code too long."""
    from pygments.lexers import get_lexer_by_name
    from pygments.util import ClassNotFound

    text = "\n".join(lines)
    if not language or len(text) > LONGEST_COLOURED:
        return []
    try:
        lexer = get_lexer_by_name(language, stripnl=False, ensurenl=False)
    except ClassNotFound:
        return []
    found: list[list[Span]] = [[] for _ in lines]
    line = column = 0
    for kind, value in lexer.get_tokens(text):
        style = _style_of(str(kind))
        for number, part in enumerate(value.split("\n")):
            if number:
                line, column = line + 1, 0
            if style and part and line < len(found):
                found[line].append((column, column + len(part), style))
            column += len(part)
    return [tuple(spans) for spans in found]


def _style_of(kind: str) -> str:
    name = kind.removeprefix("Token.")
    return next((style for prefix, style in _STYLES if name.startswith(prefix)), "")


def _header(language: str, width: int, number: int) -> Row:
    name, button = f" {language[:20]}", "copy "
    text = name + " " * (width - cells(name) - len(button)) + button
    start, end = len(text) - len(button), len(text) - 1
    if cells(text) > width:
        return Row(name[:width], ((0, width, "code-header"),), "code", margin=width)
    spans = ((0, start, "code-header"), (start, end, "button"))
    return Row(text, spans, "code", margin=len(text), actions=((start, end, f"copy-code {number}"),))


def _expanded(line: str) -> str:
    return line.expandtabs(TAB) if "\t" in line else line


_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})[ \t]*$")


def closes(line: str, marker: str) -> bool:
    """Whether a line ends a block that `marker` began."""
    found = _FENCE.match(line)
    return found is not None and found[1][0] == marker[0] and len(found[1]) >= len(marker)

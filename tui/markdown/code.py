"""Code blocks: lines that are appended one by one, and coloured now and then, a slice at a time.

So the cost stays linear, and no single call keeps a person's keys waiting, however long the block is.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from .row import Row, Span, cells, chop

if TYPE_CHECKING:
    from collections.abc import Iterator

TAB = 4
GROWTH = 1.5  # a growing block is coloured anew when it has grown by this factor: at most three times its length in all
FIRST_COLOURS = 8  # lines
LONGEST_COLOURED = 200_000  # characters; longer blocks stay plain
SLICE = 800  # tokens of the language that are coloured at once: about 5 ms

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
        self._colouring: _Colouring | None = None  # the one that is going on
        self._coloured = 0  # lines that the last whole one was about
        self._next_colours = FIRST_COLOURS
        self._finished = finished
        self._width = 0
        self._rows: list[Row] = []
        self._starts: list[int] = []  # of each line that `_rows` stand for, its first row

    @property
    def text(self) -> str:
        """The code as it came."""
        lines = [*self._source, self._partial] if self._partial else self._source
        return "\n".join(lines)

    @property
    def uncoloured(self) -> bool:
        """Whether another call of `rows` will show more colours, though no more lines come."""
        return self._colouring is not None or (self._finished and len(self._shown) > self._coloured)

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
        if self._colouring is not None and self._colouring.total < len(self._shown):
            self._colouring = None  # the last one is about all lines

    def rows(self, width: int, number: int) -> list[Row]:
        """The block's rows under a line with its language; `number` is its place among the answer's code blocks.

        Each call colours one more slice.
        """
        if width != self._width:
            self._width, self._rows, self._starts = width, [], []
        self._colour()
        for index in range(len(self._starts), len(self._shown)):
            self._starts.append(len(self._rows))
            self._rows += self._rows_of_line(index)
        last = list(self._broken(_expanded(self._partial), ())) if self._partial else []
        return [_header(self.language, width, number), *self._rows, *last, Row("", fill="code")]

    def _rows_of_line(self, index: int) -> Iterator[Row]:
        return self._broken(self._shown[index], self._spans[index] if index < len(self._spans) else ())

    def _broken(self, line: str, spans: tuple[Span, ...]) -> Iterator[Row]:
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
        if self._colouring is None:
            due = lines > self._coloured if self._finished else lines >= self._next_colours
            if not due:
                return
            self._next_colours = int(lines * GROWTH) + 1
            self._colouring = _Colouring(self._shown, self.language)
        first = self._colouring.done
        found = self._colouring.advance(SLICE)
        self._spans[first : first + len(found)] = found
        for index in range(first, min(first + len(found), len(self._starts))):
            rows = list(self._rows_of_line(index))  # as many as before: colours break no line
            self._rows[self._starts[index] : self._starts[index] + len(rows)] = rows
        if self._colouring.done >= self._colouring.total:
            self._coloured, self._colouring = self._colouring.total, None


class _Colouring:
    """One walk through a block as it is now: `done` of `total` lines have their colours."""

    def __init__(self, lines: list[str], language: str) -> None:
        self.total = len(lines)
        self.done = 0
        self._column = 0
        self._line: list[Span] = []  # of the line that is not done
        self._tokens = _tokens("\n".join(lines), language)

    def advance(self, tokens: int) -> list[tuple[Span, ...]]:
        """Look at so many tokens more; returns the spans of the lines that are done now."""
        found: list[tuple[Span, ...]] = []
        for _ in range(tokens):
            token = next(self._tokens, None)
            if token is None:
                found.append(tuple(self._line))
                found += [()] * (self.total - self.done - len(found))
                break
            style, value = token
            for number, part in enumerate(value.split("\n")):
                if number:
                    found.append(tuple(self._line))
                    self._line, self._column = [], 0
                if style and part:
                    self._line.append((self._column, self._column + len(part), style))
                self._column += len(part)
        del found[self.total - self.done :]  # a lexer may end with lines of its own
        self.done += len(found)
        return found


def _tokens(text: str, language: str) -> Iterator[tuple[str, str]]:
    """Pieces of the text with their styles; none when the language is not known or the code too long."""
    from pygments.lexers import get_lexer_by_name
    from pygments.util import ClassNotFound

    if not language or len(text) > LONGEST_COLOURED:
        return
    try:
        lexer = get_lexer_by_name(language, stripnl=False, ensurenl=False)
    except ClassNotFound:
        return
    for kind, value in lexer.get_tokens(text):
        yield _style_of(str(kind)), value


@lru_cache(1024)
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

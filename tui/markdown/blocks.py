"""Blocks of Markdown: from the parser's tokens to objects that lay themselves out for a width."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from .code import CodeBlock
from .inline import styled_of
from .row import Row, Styled, cells, wrap
from .table import table_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from markdown_it.token import Token

BULLETS = "•◦▪"
DEEPEST = 12  # levels of quotes and lists that are still indented


@dataclass(slots=True)
class Numbering:
    """Counts the code blocks of a document, for /copy N."""

    codes: list[CodeBlock] = field(default_factory=list)


class Block(Protocol):
    """A part of a document."""

    def rows(self, width: int, numbering: Numbering) -> list[Row]:
        """The block in rows of at most `width` columns."""


@dataclass(slots=True)
class Paragraph:
    """Flowing text."""

    styled: Styled

    def rows(self, width: int, numbering: Numbering) -> list[Row]:
        """Its words, wrapped."""
        return wrap(self.styled, width)


@dataclass(slots=True)
class Heading:
    """A title; the first two levels stand out more."""

    styled: Styled
    level: int

    def rows(self, width: int, numbering: Numbering) -> list[Row]:
        """Its words, wrapped, in the style of its level."""
        text = self.styled.text
        style = "h1" if self.level == 1 else "h2" if self.level == 2 else "h3"
        return wrap(Styled(text, ((0, len(text), style), *self.styled.spans)), width)


@dataclass(slots=True)
class Rule:
    """A line across."""

    def rows(self, width: int, numbering: Numbering) -> list[Row]:
        """One row."""
        size = max(1, min(width, 40))
        return [Row("─" * size, ((0, size, "rule"),), margin=size)]


@dataclass(slots=True)
class Code:
    """A fenced or indented block of code."""

    code: CodeBlock

    def rows(self, width: int, numbering: Numbering) -> list[Row]:
        """Its lines, numbered among the document's blocks of code."""
        numbering.codes.append(self.code)
        return self.code.rows(width, len(numbering.codes))


@dataclass(slots=True)
class Quote:
    """A quotation."""

    children: list[Block]

    def rows(self, width: int, numbering: Numbering) -> list[Row]:
        """Its blocks behind a bar, which is left away where there is no room."""
        inside = width - 2 if width > 2 * DEEPEST else width
        return [row.shifted("▎ " if inside < width else "", "quote") for row in stack(self.children, inside, numbering)]


@dataclass(slots=True)
class Items:
    """A list; `start` is the first number, None for bullets. `continued`: earlier items are in the block before."""

    items: list[list[Block]]
    start: int | None
    depth: int
    tight: bool
    continued: bool = False

    @property
    def next_number(self) -> int:
        """Of the item that would follow."""
        return (self.start or 0) + len(self.items)

    def go_on(self, number: int) -> None:
        """This is the rest of a list, from this number on."""
        self.continued = True
        self.start = None if self.start is None else number

    def rows(self, width: int, numbering: Numbering) -> list[Row]:
        """Its items behind their bullets or numbers, which are left away where there is no room."""
        found: list[Row] = []
        marks = [self._mark(index) for index in range(len(self.items))]
        size = max((cells(mark) for mark in marks), default=0) if width > 2 * DEEPEST else 0
        for mark, item in zip(marks, self.items, strict=True):
            if found and not self.tight:
                found.append(Row(""))
            rows = stack(item, width - size, numbering, tight=self.tight) or [Row("")]
            if not size:
                rows = [rows[0].shifted("- "), *rows[1:]]
            else:
                first = rows[0].shifted(mark.rjust(size), "bullet")
                rows = [first, *(row.shifted(" " * size) for row in rows[1:])]
            found += rows
        return found

    def _mark(self, index: int) -> str:
        return f"{BULLETS[self.depth % len(BULLETS)]} " if self.start is None else f"{self.start + index}. "


@dataclass(slots=True)
class Table:
    """A table with a header."""

    header: list[Styled]
    body: list[list[Styled]]

    def rows(self, width: int, numbering: Numbering) -> list[Row]:
        """Columns as wide as fits; nothing where there is no header."""
        return table_rows(self.header, self.body, width) if self.header else []


def stack(blocks: Sequence[Block], width: int, numbering: Numbering, *, tight: bool = False) -> list[Row]:
    """Blocks below each other, with a blank row between."""
    found: list[Row] = []
    for index, block in enumerate(blocks):
        if index and not (tight and isinstance(block, Items | Paragraph)):
            found.append(Row(""))
        found += block.rows(max(1, width), numbering)
    return found


def blocks_of(tokens: Sequence[Token], *, finished: bool = True) -> list[Block]:
    """The blocks of a token stream. `finished` False: the last code block may still grow, so it is not coloured yet."""
    reader = iter(tokens)
    found: list[Block] = []
    for token in reader:
        block = _block(token, reader, 0)
        if block is not None:
            found.append(block)
    if not finished and found:
        _leave_plain(found[-1])
    return found


def _leave_plain(block: Block) -> None:
    if isinstance(block, Code):
        block.code = CodeBlock(block.code.language, block.code.text.split("\n"), finished=False)
    elif isinstance(block, Quote) and block.children:
        _leave_plain(block.children[-1])
    elif isinstance(block, Items) and block.items and block.items[-1]:
        _leave_plain(block.items[-1][-1])


def _block(token: Token, reader: Iterator[Token], depth: int) -> Block | None:
    kind = token.type
    if kind == "paragraph_open":
        return Paragraph(_inline(reader))
    if kind == "heading_open":
        return Heading(_inline(reader), int(token.tag[1:]))
    if kind in ("fence", "code_block"):
        return Code(CodeBlock(token.info, token.content.rstrip("\n").split("\n")))
    if kind == "hr":
        return Rule()
    if kind == "blockquote_open":
        return Quote(_children(reader, "blockquote_close", depth))
    if kind in ("bullet_list_open", "ordered_list_open"):
        return _list(token, reader, depth)
    if kind == "table_open":
        return _table(reader)
    if kind == "inline":
        return Paragraph(styled_of(token))
    return None


def _inline(reader: Iterator[Token]) -> Styled:
    styled = Styled("")
    for token in reader:
        if token.type == "inline":
            styled = styled_of(token)
        elif token.type.endswith("_close"):
            break
    return styled


def _children(reader: Iterator[Token], end: str, depth: int) -> list[Block]:
    found: list[Block] = []
    for token in reader:
        if token.type == end:
            break
        block = _block(token, reader, depth + 1)
        if block is not None:
            found.append(block)
    return found


def _list(opening: Token, reader: Iterator[Token], depth: int) -> Items:
    ordered = opening.type == "ordered_list_open"
    start = int(opening.attrs.get("start", 1)) if ordered else None
    items: list[list[Block]] = []
    tight = True
    end = opening.type.replace("_open", "_close")
    for token in reader:
        if token.type == end:
            break
        if token.type == "list_item_open":
            hidden: list[bool] = []
            items.append(_children(_watched(reader, hidden), "list_item_close", depth))
            tight = tight and all(hidden)
    return Items(items, start, depth, tight)


def _watched(reader: Iterator[Token], hidden: list[bool]) -> Iterator[Token]:
    """Tokens, noting whether paragraphs are hidden, which is how the parser tells a tight list."""
    for token in reader:
        if token.type == "paragraph_open":
            hidden.append(token.hidden)
        yield token


def _table(reader: Iterator[Token]) -> Table:
    header: list[Styled] = []
    body: list[list[Styled]] = []
    in_head = False
    for token in reader:
        if token.type == "table_close":
            break
        if token.type in ("thead_open", "thead_close"):
            in_head = token.type == "thead_open"
        elif token.type == "tr_open" and not in_head:
            body.append([])
        elif token.type == "inline":
            (header if in_head else body[-1]).append(styled_of(token))
    return Table(header, body)

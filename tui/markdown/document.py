"""A document that grows at its end.

Only the last top-level block is parsed again when text comes; what lies before it is settled. Inside an open code fence
nothing is parsed at all: lines go straight into the block. Of a long list only the last item is parsed again. So a long
answer costs time in proportion to its length, except for one endless table or paragraph, for which the caller flushes
less often.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from .blocks import Block, Code, Items, Numbering, blocks_of
from .code import CodeBlock, closes
from .row import Row

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markdown_it import MarkdownIt
    from markdown_it.token import Token

DEEPEST_NESTING = 40  # of the parser; deeper is text
LONGEST_LIST = 3000  # characters of a list that are parsed again with every piece: about 8 ms

_DEFINITION = re.compile(r"^[ \t>*+-]*\[[^\[\]\n]+\]:\s", re.MULTILINE)  # where a link may lead


class MarkdownDocument:
    """Text in, rows out. `finish` when no more text comes."""

    def __init__(self, text: str = "", *, finished: bool = True) -> None:
        self._settled: list[Block] = []
        self._open: list[Block] = []
        self._tail = ""  # source of the blocks that are not settled
        self._fence: CodeBlock | None = None
        self._marker = ""
        self._line = ""  # of an open fence, incomplete
        self._indent = 0
        self._rows: list[Row] = []  # of the settled blocks
        self._rows_of = 0
        self._width = 0
        self._numbering = Numbering()
        self._settled_codes = 0
        self._items: int | None = None  # the number of the next item of a list whose first items are settled
        self.source = ""
        if text:
            self.append(text)
        if finished:
            self.finish()

    @property
    def codes(self) -> list[CodeBlock]:
        """The code blocks in their order, as of the last `rows`."""
        return self._numbering.codes

    @property
    def open_source(self) -> str:
        """The part of the text that the next piece may still change."""
        return self._tail

    @property
    def uncoloured(self) -> bool:
        """Whether another call of `rows` will show more colours, though no more text comes."""
        return any(code.uncoloured for code in self.codes[self._settled_codes :])

    def append(self, text: str) -> None:
        """More text at the end, in pieces of any size."""
        self.source += text
        if self._fence is not None:
            text = self._into_fence(text)
            if self._fence is not None:
                return
        self._tail += text
        if self._tail:
            self._parse(finished=False)

    def finish(self) -> None:
        """Settle everything: an open fence is closed, code is coloured."""
        if self._fence is not None:
            if self._line:
                self._fence.append(self._without_indent(self._line))
            self._fence.finish()
            self._fence, self._line = None, ""
            self._settled += self._open
            self._open = []
        elif self._tail:
            self._parse(finished=True)
            self._settled += self._open
            self._open, self._tail = [], ""
        if _DEFINITION.search(self.source):  # a link may be defined far from its use: only the whole text shows it
            self._settled, self._width = blocks_of(_parser().parse(self.source)), 0

    def rows(self, width: int) -> list[Row]:
        """The whole document for a width; the rows of settled blocks are kept."""
        if width != self._width:
            self._width, self._rows, self._rows_of = width, [], 0
            self._numbering = Numbering()
            self._settled_codes = 0
        del self._numbering.codes[self._settled_codes :]
        rest: list[Row] = []
        kept = True  # no block so far waits for its colours
        for block in [*self._settled[self._rows_of :], *self._open]:
            apart = not (isinstance(block, Items) and block.continued and block.tight)
            rows = block.rows(width, self._numbering)
            if apart and (self._rows or rest):
                rows = [Row(""), *rows]
            kept = kept and self._rows_of < len(self._settled) and not self.uncoloured
            if kept:
                self._rows += rows
                self._rows_of += 1
                self._settled_codes = len(self._numbering.codes)
            else:
                rest += rows
        return [*self._rows, *rest] if rest else self._rows

    def _parse(self, *, finished: bool) -> None:
        tokens = _parser().parse(self._tail)
        starts = [token.map[0] for token in tokens if token.level == 0 and token.map is not None and token.nesting >= 0]
        if not starts:
            self._open = []
            return
        lines = self._tail.split("\n")
        if not finished and len(starts) > 1 and starts[-1] == len(lines) - 1:
            starts.pop()  # an incomplete line may still turn out to belong to the block before it
        last = starts[-1]
        index = next(i for i, token in enumerate(tokens) if token.level == 0 and token.map and token.map[0] == last)
        if index:
            self._settled += self._blocks(tokens[:index])
            self._items = None
        if not finished and len(self._tail) > LONGEST_LIST:
            last, tokens, index = self._settle_items(tokens, index, last, len(lines) - 1)
        self._open = self._blocks(tokens[index:], finished=finished)
        self._tail = "\n".join(lines[last:])
        if not finished:
            self._enter_fence(tokens[-1], len(tokens) - index)

    def _blocks(self, tokens: Sequence[Token], *, finished: bool = True) -> list[Block]:
        """Blocks at the end of what is settled; a list there goes on."""
        found = blocks_of(tokens, finished=finished)
        if self._items is not None and found and isinstance(found[0], Items):
            found[0].go_on(self._items)
        return found

    def _settle_items(self, tokens: list[Token], index: int, line: int, open_line: int) -> tuple[int, list[Token], int]:
        """Settle the items of a list at `index` that cannot change; returns the line, tokens and index of the rest.

        The last item may grow, and what looks like an item in the line that is not whole (`open_line`) may be none.
        """
        items = [
            (number, token.map[0])
            for number, token in enumerate(tokens)
            if number > index and token.type == "list_item_open" and token.level == 1 and token.map is not None
        ]
        items = [item for item in items if item[1] < open_line]
        if len(items) < 2:
            return line, tokens, index
        number, first_line = items[-1]
        settled = self._blocks(tokens[index:number])
        self._settled += settled
        self._items = next(block.next_number for block in settled if isinstance(block, Items))
        return first_line, [tokens[index], *tokens[number:]], 0

    def _enter_fence(self, token: Token, count: int) -> None:
        """From here on lines go into the code block, unless it was closed already, or is not alone at the end."""
        if token.type != "fence" or count > 1:
            return
        lines = self._tail.split("\n")
        opening = lines[0].lstrip(" ")
        marker = opening[: len(opening) - len(opening.lstrip(opening[0]))]
        if "\n" not in self._tail or any(closes(line, marker) for line in lines[1:]):
            return
        self._marker, self._indent = marker, len(lines[0]) - len(opening)
        self._fence = CodeBlock(token.info, finished=False)
        self._open = [Code(self._fence)]
        rest = "\n".join(lines[1:])
        self._tail = self._line = ""
        self._into_fence(rest)

    def _into_fence(self, text: str) -> str:
        """Feed an open fence; returns what stands behind its end."""
        fence = self._fence
        if fence is None:
            return text
        *lines, self._line = (self._line + text).split("\n")
        for number, line in enumerate(lines):
            if closes(line, self._marker):
                fence.finish()
                self._settled += self._open
                self._open, self._fence = [], None
                rest = "\n".join([*lines[number + 1 :], self._line])
                self._line = ""
                return rest
            fence.append(self._without_indent(line))
        hidden = self._line.strip() and closes(self._line.rstrip() + self._marker, self._marker)
        fence.set_partial("" if hidden else self._without_indent(self._line))
        return ""

    def _without_indent(self, line: str) -> str:
        spaces = len(line) - len(line.lstrip(" "))
        return line[min(spaces, self._indent) :]


def warm_up() -> None:
    """Import the parser and the colouring, which takes 0.1 s: in a thread, so that no key waits for it."""
    MarkdownDocument("```python\npass\n```").rows(80)


def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    options = {"html": False, "linkify": False, "typographer": False, "maxNesting": DEEPEST_NESTING}
    return MarkdownIt("commonmark", options).enable(["table", "strikethrough"])

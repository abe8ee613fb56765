"""One turn of a chat as rows: who speaks, thinking folded away, the text, and a line of figures and buttons."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from localllm.chat.visible import counted, visible, visible_line
from localllm.tui.markdown import MarkdownDocument, Row
from localllm.tui.markdown.row import Styled, cells, wrap

if TYPE_CHECKING:
    from localllm.chat.reasoning import Kind
    from localllm.conversations import Message
    from localllm.tui.markdown.row import Span

FOLDED_AT = 30  # rows of a question above which it is folded
FOLDED_TO = 8  # its first rows
FOLDED_END = 3  # and its last ones: what is asked often stands behind a long text
THINKING_TAIL = 3  # rows of thinking that are shown while it is written


@dataclass(slots=True)
class Turn:
    """A turn on the screen. `branch` is (place, count) among its versions; `live` while it is being written."""

    message: int
    role: str
    name: str
    branch: tuple[int, int] = (1, 1)
    figures: dict[str, Any] = field(default_factory=dict)
    partial: bool = False
    live: bool = False
    picked: bool = False
    unfolded: bool = False
    thinking_shown: bool = False
    version: int = 0  # grows with every change of what the rows are made of
    document: MarkdownDocument = field(default_factory=lambda: MarkdownDocument(finished=False))
    reasoning: str = ""
    text: str = ""
    _rows: list[Row] = field(default_factory=list)
    _made_for: tuple[int, int, bool] = (-1, -1, False)

    @classmethod
    def of(cls, message: Message, branch: tuple[int, int], name: str, shown: Turn | None = None) -> Turn:
        """A turn of the store; from `shown`, the same turn as it was, is taken what need not be laid out again."""
        turn = cls(message.id, message.role, name, branch, message.figures, message.state == "partial")
        turn.reasoning, turn.text = visible(message.reasoning), visible(message.content)
        if shown is not None and not shown.live and (shown.message, shown.text) == (turn.message, turn.text):
            turn.document, turn.unfolded, turn.thinking_shown = shown.document, shown.unfolded, shown.thinking_shown
        elif message.role == "assistant":
            turn.document = MarkdownDocument(turn.text)
        return turn

    @property
    def uncoloured(self) -> bool:
        """Whether the code in it waits for more of its colours, and no more text comes."""
        return not self.live and self.document.uncoloured

    def append(self, kind: Kind, text: str) -> None:
        """More of an answer."""
        shown = visible(text)
        if kind == "reasoning":
            self.reasoning += shown
        else:
            self.text += shown
            self.document.append(shown)
        self.version += 1

    def finish(self) -> None:
        """The answer is over: colour what is not coloured yet."""
        self.document.finish()
        self.live = False
        self.version += 1

    def rows(self, width: int) -> list[Row]:
        """All rows, at most `width` columns wide, the blank one below included."""
        key = (width, self.version, self.picked)
        if key != self._made_for:
            body = self._question(width) if self.role != "assistant" else self._answer(width)
            self._rows = [self._header(width), *body, *self._footer(width), Row("")]
            self._made_for = key
        return self._rows

    def _header(self, width: int) -> Row:
        name = visible_line(self.name, 60)
        spans: list[Span] = [(0, len(name), "name" if self.role == "assistant" else "you")]
        actions: list[Span] = []
        text = name
        place, count = self.branch
        if count > 1:
            for label, action in (("  ‹", "branch -1"), (f" {place}/{count} ", ""), ("›", "branch 1")):
                if action:
                    actions.append((len(text), len(text) + len(label), action))
                spans.append((len(text), len(text) + len(label), "button"))
                text += label
        return Row(text, tuple(spans), margin=len(text), actions=tuple(actions))

    def _question(self, width: int) -> list[Row]:
        rows = wrap(Styled(self.text.replace("\t", "    ")), width)
        if len(rows) <= FOLDED_AT or self.unfolded:
            return rows
        label = f"… {len(rows) - FOLDED_TO - FOLDED_END} more lines"
        size = len(label)
        button = Row(label, ((0, size, "button"),), margin=size, actions=((0, size, "unfold"),))
        return [*rows[:FOLDED_TO], button, *rows[-FOLDED_END:]]

    def _answer(self, width: int) -> list[Row]:
        rows = self._thinking(width) if self.reasoning else []
        content = self.document.rows(width)
        if rows and content:
            rows.append(Row(""))
        rows += content
        if self.live and not content and not self.reasoning:
            rows.append(Row("…", ((0, 1, "dim"),), margin=1))
        return rows

    def _thinking(self, width: int) -> list[Row]:
        writing = self.live and not self.text
        words = counted(len(self.reasoning.split()), "word")
        label = f"{'▾' if self.thinking_shown else '▸'} {'thinking' if writing else 'thought'}, {words}"
        size = len(label)
        head = Row(label, ((0, size, "thinking"),), margin=size, actions=((0, size, "thinking"),))
        tail = self.reasoning.strip()
        if not self.thinking_shown:
            if not writing:
                return [head]
            tail = tail[-4 * width :]
        rows = wrap(Styled(tail, ((0, len(tail), "thinking"),)), max(1, width - 2))
        if not self.thinking_shown:
            rows = rows[-THINKING_TAIL:]
        return [head, *(row.shifted("│ ", "rule") for row in rows)]

    def _footer(self, width: int) -> list[Row]:
        found: list[Row] = []
        for figure, mark, style in (("error", "✗ ", "error"), ("note", "", "dim")):
            told = self.figures.get(figure)
            if self.role == "assistant" and isinstance(told, str):
                text = f"{mark}{visible(told)}"
                found += [Row(""), *wrap(Styled(text, ((0, len(text), style),)), width)]
        parts = self._facts() if self.role == "assistant" and not self.live else []
        buttons = self._buttons()
        if not parts and not buttons:
            return found
        text = ""
        spans: list[Span] = []
        actions: list[Span] = []
        for label in parts:
            spans.append((len(text), len(text) + len(label), "dim"))
            text += f"{label}  "
        for label, action in buttons:
            if cells(text) + cells(label) > width:
                break
            spans.append((len(text), len(text) + len(label), "button"))
            actions.append((len(text), len(text) + len(label), action))
            text += f"{label}  "
        while parts and cells(text) > width:
            text = text[: width - 1] + "…"
        return [*found, Row(text, tuple(spans), margin=len(text), actions=tuple(actions))]

    def _facts(self) -> list[str]:
        found = []
        tokens, rate = self.figures.get("tokens"), self.figures.get("tokens_per_second")
        if isinstance(tokens, int) and tokens:
            found.append(counted(tokens, "token"))
        if isinstance(rate, int | float) and rate:
            found.append(f"{rate:.1f} tok/s")
        if self.figures.get("reason") == "length":
            found.append("cut at its length")
        elif self.partial:
            found.append("stopped")
        return found

    def _buttons(self) -> list[tuple[str, str]]:
        if self.live or not self.picked:
            return []
        if self.role == "user":
            return [("edit", "edit"), ("copy", "copy")]
        unfinished = self.partial or self.figures.get("reason") == "length"
        more = [("continue", "continue")] if unfinished else []
        return [("copy", "copy"), ("retry", "retry"), *more]

"""Where a question is written: several lines, history, paste of any size; Enter sends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding
from textual.message import Message
from textual.widgets import TextArea

from localllm.chat.visible import visible

from .transcript import Transcript

if TYPE_CHECKING:
    from textual import events

LONGEST_SHOWN = 20_000  # characters of a paste that are put into the editor as they are; more becomes a mark
MARK = "⟦pasted {lines} lines {number}⟧"


class Prompt(TextArea):
    """The editor of a question. A paste that is too long to edit stands as a mark, and is put back when it is sent."""

    BINDINGS: ClassVar = [
        Binding("enter", "submit", "send", priority=False),
        Binding("ctrl+j,shift+enter,alt+enter", "newline", "new line"),
        Binding("tab", "complete", "complete", show=False),
    ]

    @dataclass
    class Submitted(Message):
        """The question is complete."""

        text: str

    @dataclass
    class Completed(Message):
        """Tab was pressed: a command wants its end."""

        text: str

    def __init__(self, *, id: str | None = None, placeholder: str = "") -> None:
        super().__init__(
            id=id,
            soft_wrap=True,
            compact=True,
            highlight_cursor_line=False,
            placeholder=placeholder,
            tab_behavior="focus",
        )
        self._history: list[str] = []
        self._place = 0
        self._draft = ""
        self._pasted: dict[str, str] = {}

    def remember(self, texts: list[str]) -> None:
        """Earlier questions, oldest first; up and down walk through them."""
        self._history = list(dict.fromkeys(reversed(texts)))[::-1]
        self._place = len(self._history)

    def fill(self, text: str) -> None:
        """Put a text in, the cursor behind it."""
        self.text = ""
        self._insert(text)

    @property
    def whole_text(self) -> str:
        """The text with every long paste in its place."""
        text = self.text
        for mark, pasted in self._pasted.items():
            text = text.replace(mark, pasted)
        return text

    def action_submit(self) -> None:
        """Send."""
        text = self.whole_text
        if text.strip():
            self.remember([*self._history, text])
            self.post_message(self.Submitted(text))

    def take(self) -> None:
        """Empty the editor: what was in it has been sent."""
        self.text = ""
        self._pasted.clear()
        self._place = len(self._history)

    def action_newline(self) -> None:
        """Begin a new line."""
        self.insert("\n")

    def action_complete(self) -> None:
        """Complete a command, or go to the transcript."""
        self.post_message(self.Completed(self.text))

    async def _on_key(self, event: events.Key) -> None:
        if event.key == "enter":
            event.stop()
            event.prevent_default()
            self.action_submit()
            return
        await super()._on_key(event)

    async def _on_paste(self, event: events.Paste) -> None:
        event.stop()
        event.prevent_default()
        self._insert(event.text)

    def _insert(self, text: str) -> None:
        text = visible(text.replace("\r\n", "\n").replace("\r", "\n"))
        if len(text) > LONGEST_SHOWN:
            mark = MARK.format(lines=text.count("\n") + 1, number=f"#{len(self._pasted) + 1}")
            self._pasted[mark] = text
            text = mark
        self.insert(text)

    def action_cursor_up(self, select: bool = False) -> None:
        """Up in the text; in the first line, the question before."""
        if not select and self.cursor_location[0] == 0 and self.get_cursor_up_location() == (0, 0):
            self._walk(-1)
        else:
            super().action_cursor_up(select)

    def action_cursor_down(self, select: bool = False) -> None:
        """Down in the text; in the last line, the question after."""
        if not select and self.cursor_location == self.document.end:
            self._walk(1)
        else:
            super().action_cursor_down(select)

    def action_cursor_page_up(self) -> None:
        """The transcript scrolls, not the question."""
        self.screen.query_one(Transcript).scroll_page_up(animate=False)

    def action_cursor_page_down(self) -> None:
        """The transcript scrolls, not the question."""
        self.screen.query_one(Transcript).scroll_page_down(animate=False)

    def _walk(self, step: int) -> None:
        place = self._place + step
        if not 0 <= place <= len(self._history):
            return
        if self._place == len(self._history):
            self._draft = self.whole_text
        self._place = place
        self.fill(self._history[place] if place < len(self._history) else self._draft)

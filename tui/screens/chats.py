"""All chats: search in titles and texts, open, rename, delete with undo."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from localllm.chat.visible import short_name, visible, visible_line
from localllm.errors import LocalLLMError
from localllm.tui.meters import box_width

if TYPE_CHECKING:
    from textual.app import ComposeResult

    from localllm.chat.desk import ChatDesk
    from localllm.conversations import Conversation

MOST = 300
FRAME = 7  # columns of a line that are neither title nor facts
SHORTEST_TITLE = 14
KEYS = "Enter: open   Ctrl-D: delete   Ctrl-Z: undo   F2: rename   Esc: close"


class ChatsScreen(ModalScreen[int]):
    """Answers with the number of the chat to go on with."""

    BINDINGS: ClassVar = [
        Binding("escape", "leave", "close"),
        Binding("down", "go_down", "list", show=False),
        Binding("ctrl+d,delete", "delete", "delete", priority=True),
        Binding("ctrl+z", "undo", "undo", priority=True),
        Binding("f2", "rename", "rename", priority=True),
    ]

    def __init__(self, desk: ChatDesk, words: str = "") -> None:
        super().__init__()
        self._desk = desk
        self._words = words
        self._numbers: list[int] = []
        self._renaming: int | None = None

    def compose(self) -> ComposeResult:
        """A search line over the list."""
        with Vertical(classes="box tall"):
            yield Static("Chats", classes="heading", markup=False)
            yield Input(self._words, placeholder="search", id="words")
            yield OptionList(id="chats", markup=False)
            yield Static(KEYS, id="keys", classes="hint", markup=False)

    def on_mount(self) -> None:
        """The list, newest first."""
        self._fill()
        self.query_one(Input).focus()

    def _fill(self) -> None:
        options = self.query_one(OptionList)
        options.clear_options()
        self._numbers = []
        for chat, excerpt in self._found():
            self._numbers.append(chat.id)
            options.add_option(Option(self._line(chat, excerpt)))
        if self._numbers:
            here = self._desk.conversation
            options.highlighted = self._numbers.index(here) if here in self._numbers else 0
        else:
            options.add_option(Option(Content("nothing found" if self._words else "no chats yet"), disabled=True))

    def _found(self) -> list[tuple[Conversation, str]]:
        store, words = self._desk.store, self._words.lower().split()
        if not words:
            return [(chat, "") for chat in store.conversations(limit=MOST)]
        found = {
            chat.id: (chat, "")
            for chat in store.conversations(limit=10_000)
            if all(word in chat.title.lower() for word in words)
        }
        for hit in store.search(self._words, limit=MOST):
            found.setdefault(hit.conversation.id, (hit.conversation, hit.excerpt))
        return list(found.values())[:MOST]

    def _line(self, chat: Conversation, excerpt: str) -> Content:
        room = box_width(self.app.size.width) - FRAME
        facts = f"  {_age(chat.updated)}, {short_name(chat.model)}"
        if room - len(facts) < SHORTEST_TITLE:
            facts = f"  {_age(chat.updated)}"
        title = Content(visible_line(chat.title, max(SHORTEST_TITLE, room - len(facts))) or "untitled")
        line = Content.assemble((f"{chat.id:>4} ", "$foreground 40%"), title, (facts, "$foreground 50%"))
        return line + Content("\n     ") + _matched(excerpt) if excerpt else line

    def on_input_changed(self, event: Input.Changed) -> None:
        """Search while typing."""
        if self._renaming is None:
            self._words = event.value
            self._fill()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter: the new name, or open what is marked."""
        if self._renaming is None:
            self._open()
            return
        number, self._renaming = self._renaming, None
        self._desk.store.set_field(number, "title", " ".join(event.value.split()))
        self._search_again()

    def on_option_list_option_selected(self) -> None:
        """Enter or a click in the list."""
        self._open()

    def _open(self) -> None:
        number = self._marked()
        if number is not None:
            self.dismiss(number)

    def _marked(self) -> int | None:
        index = self.query_one(OptionList).highlighted
        return self._numbers[index] if index is not None and index < len(self._numbers) else None

    def action_go_down(self) -> None:
        """From the search line into the list."""
        self.query_one(OptionList).focus()

    def action_delete(self) -> None:
        """Into the bin."""
        number = self._marked()
        if number is not None and self._renaming is None:
            self._desk.delete(number)
            self._fill()
            self._say("deleted; Ctrl-Z takes it back")

    def action_undo(self) -> None:
        """Out of the bin."""
        try:
            self._desk.undo_delete()
        except LocalLLMError as error:
            self._say(error.message)
            return
        self._fill()
        self._say("it is back")

    def action_rename(self) -> None:
        """The search line takes the new name."""
        number = self._marked()
        if number is not None:
            self._renaming = number
            line = self.query_one(Input)
            line.value = self._desk.store.conversation(number).title
            line.cursor_position = len(line.value)
            line.focus()
            self._say("Enter: keep the new name   Esc: leave it")

    def action_leave(self) -> None:
        """Give up renaming, or close."""
        if self._renaming is not None:
            self._renaming = None
            self._search_again()
        else:
            self.dismiss(None)

    def _search_again(self) -> None:
        self.query_one(Input).value = self._words
        self._fill()
        self._say(KEYS)

    def _say(self, text: str) -> None:
        self.query_one("#keys", Static).update(Content(visible(text)))


def _matched(excerpt: str) -> Content:
    """An excerpt with its matches marked; they stand between two control characters."""
    parts: list[str | tuple[str, str]] = []
    for piece in excerpt.replace("\n", " ").split("\x02"):
        match, end, rest = piece.partition("\x03")
        if end:
            parts.append((visible_line(match, 200), "bold $text-warning"))
            parts.append((visible(rest), "$foreground 60%"))
        else:
            parts.append((visible(piece), "$foreground 60%"))
    return Content.assemble(*parts)


def _age(seconds: float) -> str:
    passed = max(0.0, time.time() - seconds)
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if passed >= length:
            return f"{int(passed // length)} {unit} ago"
    return "now"

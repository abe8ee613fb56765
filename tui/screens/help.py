"""Keys and commands."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from localllm.chat.commands import COMMANDS
from localllm.tui.meters import box_width

if TYPE_CHECKING:
    from textual.app import ComposeResult

KEYS = (
    ("Enter", "send the question"),
    ("Ctrl-J", "new line (also Shift-Enter, Alt-Enter)"),
    ("Up, Down", "earlier questions, at the first and last line"),
    ("Tab", "complete a command; else go to the transcript"),
    ("Esc, Ctrl-C", "stop the answer (what is written stays), or the loading of a model"),
    ("Ctrl-C", "copy what is selected; otherwise leave, after asking"),
    (
        "Alt-Up, Alt-Down",
        "pick a turn, then: c copy, e edit, r retry, g go on, t thinking, left/right other versions, Enter unfold",
    ),
    ("PgUp, PgDn", "scroll (also the mouse wheel)"),
    ("Ctrl-N, Ctrl-O", "new chat, all chats (search, rename, delete)"),
    ("Ctrl-L", "models: fetch, change"),
    ("Ctrl-R, Ctrl-G", "another answer, write in $EDITOR"),
    ("F2, F3", "system prompt and sampling, what is where"),
    ("Ctrl-P", "palette: all commands and themes"),
    ("Ctrl-Q", "leave at once"),
)


COLUMN = 19  # columns of names


class HelpScreen(ModalScreen[None]):
    """Closes with Esc."""

    BINDINGS: ClassVar = [Binding("escape,q,f1,enter", "dismiss", "close")]

    def compose(self) -> ComposeResult:
        """Two lists below each other."""
        width = box_width(self.app.size.width)
        rows = [Content.styled("Keys", "bold $text-primary")]
        rows += [row for key, text in KEYS for row in _entry(key, text, width)]
        rows += [Content(""), Content.styled("Commands", "bold $text-primary")]
        for command in COMMANDS:
            rows += _entry(f"/{command.name} {command.arguments}", command.help, width)
        with Vertical(classes="box"), VerticalScroll():
            yield Static(Content("\n").join(rows), classes="text")


def _entry(name: str, text: str, width: int) -> list[Content]:
    """The name, and the text beside it, or below where there is too little room."""
    indent = COLUMN if width >= 2 * COLUMN else 2
    first, *more = textwrap.wrap(text, max(10, width - indent)) or [""]
    rows = [Content.assemble((name.ljust(COLUMN), "bold"), first)]
    if indent < COLUMN or len(name) >= COLUMN:
        rows = [Content.styled(name, "bold"), Content(" " * indent + first)]
    return rows + [Content(" " * indent + line) for line in more]

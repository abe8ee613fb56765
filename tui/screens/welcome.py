"""The first run: no model is on this computer yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from localllm.chat.visible import visible_line
from localllm.tui.meters import size

if TYPE_CHECKING:
    from textual.app import ComposeResult

    from localllm.chat.desk import ChatDesk


class WelcomeScreen(ModalScreen[str]):
    """Answers "pull", "choose" or "quit"."""

    BINDINGS: ClassVar = [
        Binding("enter,y", "answer('pull')", "fetch and start"),
        Binding("m", "answer('choose')", "other models"),
        Binding("q,escape", "answer('quit')", "leave"),
    ]

    def __init__(self, desk: ChatDesk) -> None:
        super().__init__()
        self._desk = desk

    def compose(self) -> ComposeResult:
        """What will be fetched, and the three keys."""
        name = self._desk.model
        choice = next((choice for choice in self._desk.models.choices() if choice.name == name), None)
        facts = []
        if choice is not None:
            facts = [size(choice.size_bytes)] if choice.size_bytes is not None else []
            facts += [visible_line(choice.licence, 60), f"fits this machine: {choice.fits}"]
        about = "" if choice is None else visible_line(choice.description, 200)
        lines = [
            Content.styled("Welcome to localllm", "bold $text-primary"),
            Content(""),
            Content("A chat with a model that runs on this computer. Nothing you write leaves it."),
            Content("There is no model here yet. This one is a good start:"),
            Content(""),
            Content.assemble("  ", (visible_line(name, 80), "bold"), f"  {', '.join(facts)}"),
            Content.styled(f"  {about}", "$foreground 60%"),
            Content(""),
            Content.assemble(("Enter", "bold $text-success"), "  fetch it and start"),
            Content.assemble(("m", "bold $text-success"), "      look at other models"),
            Content.assemble(("q", "bold $text-success"), "      leave"),
        ]
        with Vertical(classes="box"):
            yield Static(Content("\n").join(lines), classes="text")

    def action_answer(self, action: str) -> None:
        """Close with the choice."""
        self.dismiss(action)

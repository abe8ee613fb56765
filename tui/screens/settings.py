"""System prompt and sampling of the present chat."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Static, TextArea

from localllm.chat.sampling import EDITABLE, effective
from localllm.chat.visible import visible
from localllm.errors import LocalLLMError

if TYPE_CHECKING:
    from textual.app import ComposeResult

    from localllm.chat.desk import ChatDesk


class SettingsScreen(ModalScreen[None]):
    """Changes are kept when it closes; a wrong value keeps it open and says what is wrong."""

    BINDINGS: ClassVar = [
        Binding("escape", "keep", "keep and close"),
        Binding("ctrl+s", "keep", "keep and close", priority=True),
    ]

    def __init__(self, desk: ChatDesk) -> None:
        super().__init__()
        self._desk = desk

    def compose(self) -> ComposeResult:
        """A text and a line for each parameter; empty ones show what is in force."""
        own = self._desk.sampling
        advised = effective(self._desk.backend.sampling, {})
        with Vertical(classes="box tall"):
            yield Static("This chat", classes="heading", markup=False)
            yield Static("System prompt", classes="hint", markup=False)
            yield TextArea(self._desk.system, id="system", soft_wrap=True, compact=True)
            yield Static("Sampling (empty: the default that is shown)", classes="hint", markup=False)
            with VerticalScroll(can_focus=False):
                for name in EDITABLE:
                    with Horizontal(classes="line"):
                        yield Static(name, markup=False)
                        yield Input(
                            _shown(own.get(name)), placeholder=_shown(advised.get(name, "off")), id=name, compact=True
                        )
            yield Static("", id="problem", classes="error", markup=False)
            yield Static("Esc: keep and close", classes="hint", markup=False)

    def on_mount(self) -> None:
        """Begin with the system prompt."""
        self.query_one("#system", TextArea).focus()

    def action_keep(self) -> None:
        """Check everything, keep it, close."""
        try:
            for name in EDITABLE:
                line = self.query_one(f"#{name}", Input)
                if line.value.strip() != _shown(self._desk.sampling.get(name)).strip():
                    self._desk.set_sampling(name, line.value)
        except LocalLLMError as error:
            self.query_one("#problem", Static).update(Content(visible(str(error))))
            return
        self._desk.system = self.query_one("#system", TextArea).text.strip()
        self.dismiss(None)

    def on_input_submitted(self) -> None:
        """Enter goes on to the next line."""
        self.focus_next()


def _shown(value: object) -> str:
    return "" if value is None else str(value[0]) if isinstance(value, list) else str(value)

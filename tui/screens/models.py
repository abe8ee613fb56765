"""The model picker: what is here, what can be fetched, whether it fits; pulls with progress, and can be cancelled."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from localllm.chat.visible import visible, visible_line
from localllm.errors import LocalLLMError
from localllm.store.events import FileProgress, Note, Phase, PullPlanned, Retrying
from localllm.tui.meters import bar, box_width, size

if TYPE_CHECKING:
    from textual.app import ComposeResult

    from localllm.chat.desk import ChatDesk
    from localllm.chat.models import ModelChoice
    from localllm.store.events import PullEvent

COLOURS = {"yes": "$text-success", "partly": "$text-warning", "no": "$text-error", "unknown": "$foreground 50%"}
AT_ONCE = 0.15  # seconds that the screen waits for the list before it is drawn without
WIDE = 70  # columns from which a line says more
NARROW = 17  # columns of a line beside the name, where it says less
REDRAWS = 5  # a second, of the progress


class _Cancelled(Exception):
    """The person does not want this pull any more."""


class ModelsScreen(ModalScreen[str]):
    """Answers with the name of a model that is here. `pull` begins with fetching that one."""

    BINDINGS: ClassVar = [Binding("escape", "leave", "close or cancel")]

    def __init__(self, desk: ChatDesk, *, pull: str | None = None) -> None:
        super().__init__()
        self._desk = desk
        self._first = pull
        self._choices: list[ModelChoice] = []
        self._found: list[ModelChoice] | LocalLLMError | None = None  # by the thread that looks
        self._pulling: str | None = None
        self._cancelled = threading.Event()
        self._latest: PullEvent | None = None
        self._outcome: LocalLLMError | _Cancelled | str | None = None

    def compose(self) -> ComposeResult:
        """A list, and what is known about the chosen one."""
        with Vertical(classes="box tall wide"):
            yield Static("Models", classes="heading", markup=False)
            yield OptionList(id="models", markup=False)
            yield Static("", id="detail", classes="hint", markup=False)
            yield Static("", id="problem", classes="error", markup=False)
            yield Static("Enter: use, or fetch and use   Esc: close", id="keys", classes="hint", markup=False)

    def on_mount(self) -> None:
        """Read the catalogue and the store; with many models that takes longer than a person wants to wait."""
        looking = threading.Thread(target=self._look, name="models", daemon=True)
        looking.start()
        looking.join(AT_ONCE)
        self.query_one(OptionList).focus()
        self.query_one("#detail", Static).update("looking at the models…")
        self._fill()
        self.set_interval(1 / REDRAWS, self._redraw)
        if self._first is not None:
            self._pull(self._first)

    def _look(self) -> None:
        try:
            self._found = self._desk.models.choices()
        except LocalLLMError as error:
            self._found = error
        except Exception as error:  # whatever files or a server do, the chat must stay
            self._found = LocalLLMError(f"the models cannot be listed: {type(error).__name__}: {error}")

    def _fill(self) -> None:
        found, self._found = self._found, None
        if found is None:
            return
        options = self.query_one(OptionList)
        options.clear_options()
        self.query_one("#detail", Static).update("")
        if isinstance(found, LocalLLMError):
            self._problem(str(found))
        else:
            self._choices = found
        wide = self.app.size.width >= WIDE
        for choice in self._choices:
            options.add_option(Option(self._line(choice, wide)))
        present = next((i for i, choice in enumerate(self._choices) if choice.name == self._desk.model), 0)
        if self._choices:
            options.highlighted = present

    def _line(self, choice: ModelChoice, wide: bool) -> Content:
        mark = "●" if choice.name == self._desk.model else "✓" if choice.here else " "
        bytes_ = "" if choice.size_bytes is None else size(choice.size_bytes)
        columns = 29 if wide else max(9, box_width(self.app.size.width) - NARROW)
        name = Content(visible_line(choice.name, 40)).truncate(columns - 1, ellipsis=True)
        line = Content.assemble(
            (f"{mark} ", "$text-success"),
            name.pad_right(columns - name.cell_length),
            bytes_.rjust(8 if wide else 7),
            ("  fits: " if wide else " ", "$foreground 60%"),
            (choice.fits.ljust(8) if wide else choice.fits, COLOURS[choice.fits]),
        )
        return line + Content(visible_line(choice.licence, 40)) if wide else line

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        """Say more about the model under the cursor."""
        if self._pulling is None and event.option_index < len(self._choices):
            choice = self._choices[event.option_index]
            about = f"{visible_line(choice.description, 200)}; {choice.note}"
            self.query_one("#detail", Static).update(Content(f"{about}{'' if choice.here else '; not here yet'}"))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Use it, or fetch it first."""
        if self._pulling is not None:
            return
        choice = self._choices[event.option_index]
        if choice.here:
            self.dismiss(choice.name)
        else:
            self._pull(choice.name)

    def action_leave(self) -> None:
        """Cancel a pull; without one, close."""
        if self._pulling is not None:
            self._cancelled.set()
            self.query_one("#detail", Static).update(Content("cancelling…"))
        else:
            self.dismiss(None)

    def _pull(self, name: str) -> None:
        self._pulling = name
        self._cancelled.clear()
        self._latest = self._outcome = None
        self._problem("")
        self.query_one("#keys", Static).update(Content("Esc: cancel (what was fetched is kept)"))
        self.query_one("#detail", Static).update(Content(f"fetching {visible_line(name, 80)}…"))
        threading.Thread(target=self._fetch, args=(name,), name="pull", daemon=True).start()

    def _fetch(self, name: str) -> None:
        """In a thread of its own: the outcome is looked at by the screen's timer."""
        try:
            self._desk.models.pull(name, self._report)
            self._outcome = name
        except (_Cancelled, LocalLLMError) as outcome:
            self._outcome = outcome
        except Exception as error:  # whatever a server or a disk does, the chat must stay
            self._outcome = LocalLLMError(f"the pull failed: {type(error).__name__}: {error}")

    def _report(self, event: PullEvent) -> None:
        self._latest = event
        if self._cancelled.is_set():
            raise _Cancelled

    def _redraw(self) -> None:
        if self._pulling is None:
            self._fill()
            return
        if self._outcome is None:
            if self._latest is not None and not self._cancelled.is_set():
                self.query_one("#detail", Static).update(_progress(self._latest))
            return
        outcome, self._outcome, self._pulling = self._outcome, None, None
        self.query_one("#keys", Static).update(Content("Enter: use, or fetch and use   Esc: close"))
        if isinstance(outcome, str):
            self.dismiss(outcome)
        elif isinstance(outcome, LocalLLMError):
            self._problem(str(outcome))
        else:
            self.query_one("#detail", Static).update(Content("cancelled; Enter goes on where it stopped"))

    def _problem(self, text: str) -> None:
        self.query_one("#problem", Static).update(Content(visible(text)))


def _progress(event: PullEvent) -> Content:
    if isinstance(event, FileProgress):
        name = visible_line(event.file, 30)
        if not event.total_bytes:
            return Content(f"{name}  {size(event.done_bytes)}")
        share = event.done_bytes / event.total_bytes
        return Content.assemble(
            f"{name} ", (bar(share, 20), "$text-accent"), f" {share:.0%} of {size(event.total_bytes)}"
        )
    if isinstance(event, Retrying):
        return Content(f"{visible_line(event.reason, 120)}; again in {event.wait_seconds:.0f} s")
    if isinstance(event, Phase):
        return Content(visible_line(f"{event.file}: {event.text}", 160))
    if isinstance(event, Note):
        return Content(visible_line(event.text, 200))
    if isinstance(event, PullPlanned):
        return Content(visible_line(f"fetching {event.name} from {event.source}", 160))
    return Content("stored")

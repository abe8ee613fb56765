"""The chat app: transcript, meters, prompt. Everything slow happens in threads; nothing that fails ends the app."""

from __future__ import annotations

import contextlib
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.content import Content
from textual.widgets import Static

from localllm.chat.commands import COMMANDS, is_command, parse_command
from localllm.chat.visible import short_name, visible, visible_line
from localllm.errors import LocalLLMError

from .commanding import Commands
from .live import FLUSHES, LiveAnswer
from .meters import Readings, lines
from .palette import ChatPalette
from .screens.confirm import ConfirmScreen
from .widgets.prompt import Prompt
from .widgets.transcript import Transcript
from .widgets.turn import Turn

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from textual import events
    from textual.driver import Driver
    from textual.geometry import Size

    from localllm.chat.desk import ChatDesk
    from localllm.chat.session import SessionEvent
    from localllm.paths import Paths

HINT = "Ask anything. / commands, F1 help"
SUGGESTIONS = 8
PATIENCE = 2.0  # seconds that leaving waits for the answer's thread


class ChatApp(App[None]):
    """One window onto the desk."""

    TITLE = "localllm"
    CSS_PATH = Path(__file__).with_name("app.tcss")
    COMMANDS: ClassVar = {ChatPalette}
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (60, "-medium"), (110, "-broad")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-tiny"), (10, "-low"), (20, "-high")]  # noqa: RUF012
    BINDINGS: ClassVar = [
        Binding("ctrl+c", "interrupt", "stop", priority=True, show=False),
        Binding("escape", "escape", "stop", show=False),
        Binding("ctrl+q", "leave", "quit", priority=True),
        Binding("f1", "command('help')", "help"),
        Binding("ctrl+n", "command('new')", "new chat"),
        Binding("ctrl+o", "command('chats')", "chats"),
        Binding("ctrl+l", "command('model')", "models"),
        Binding("ctrl+r", "command('retry')", "retry"),
        Binding("ctrl+g", "command('editor')", "editor"),
        Binding("f2", "command('set')", "settings"),
        Binding("f3", "command('plan')", "plan"),
        Binding("alt+up", "pick(-1)", "previous turn", show=False),
        Binding("alt+down", "pick(1)", "next turn", show=False),
        Binding("pageup", "page(-1)", "up", show=False),
        Binding("pagedown", "page(1)", "down", show=False),
        Binding("ctrl+end", "end", "end", show=False),
    ]

    def __init__(self, desk: ChatDesk, paths: Paths) -> None:
        super().__init__()
        self.desk = desk
        self.paths = paths
        self.readings = Readings(model=short_name(desk.model))
        self.commands = Commands(self)
        self.editing: int | None = None  # the question that the prompt's text is to replace
        self.live = LiveAnswer(self)

    def get_driver_class(self) -> type[Driver]:
        """Where Textual would read a terminal itself, pastes are made harmless first."""
        usual = super().get_driver_class()
        if sys.platform == "win32":
            return usual
        from textual.drivers.linux_driver import LinuxDriver

        from .terminal_input import TerminalDriver

        return TerminalDriver if usual is LinuxDriver else usual

    # ---- layout

    def compose(self) -> ComposeResult:
        """Top to bottom: title, transcript, suggestions, a line for special modes, prompt, meters."""
        yield Static(id="title", markup=False)
        yield Transcript(id="transcript")
        yield Static(id="suggestions", markup=False)
        yield Static(id="mode", markup=False)
        yield Prompt(id="prompt", placeholder=HINT)
        yield Static(id="meters", markup=False)

    @property
    def transcript(self) -> Transcript:
        """The turns."""
        return self.screen_stack[0].query_one(Transcript)

    @property
    def prompt(self) -> Prompt:
        """The editor."""
        return self.screen_stack[0].query_one(Prompt)

    @property
    def busy(self) -> bool:
        """Whether a model is loading or answering."""
        return self.live.running

    def on_mount(self) -> None:
        """Show what there is; without a model, welcome the person."""
        self.live.timer = self.set_interval(1 / FLUSHES, self.live.collect, pause=True)
        self.reload()
        self.prompt.focus()
        if not self.desk.models.is_here(self.desk.model):
            self.commands.welcome()
        else:
            self.load_model()

    def reload(self) -> None:
        """Show the present chat from the store."""
        store = self.desk.store
        shown = {turn.message: turn for turn in self.transcript.turns}
        turns = []
        for message in self.desk.messages():
            place = store.place_among_branches(message)
            name = self._name_of(message.role, message.figures)
            turns.append(Turn.of(message, place, name, shown.get(message.id)))
        self.transcript.show(turns)
        self.prompt.remember([turn.text for turn in turns if turn.role == "user"])
        self.readings.model = short_name(self.desk.model)
        self.readings.context = self.desk.backend.context()
        self.show_title()
        self.show_meters()

    def _name_of(self, role: str, figures: dict[str, Any]) -> str:
        return "You" if role == "user" else short_name(str(figures.get("model") or self.desk.model))

    def show_title(self) -> None:
        """The title of the chat and the model's name."""
        title = visible_line(self.desk.title, 120) or "new chat"
        text = Content.assemble(("localllm ", "bold $text-primary"), ("▸ ", "$foreground 40%"), Content(title))
        self.screen_stack[0].query_one("#title", Static).update(text)

    def show_meters(self, size: Size | None = None) -> None:
        """Draw the meters for a size (None: the present one)."""
        size = size or self.size
        meters = self.screen_stack[0].query_one("#meters", Static)
        meters.update(lines(self.readings, size.width, 2 if size.height >= 20 else 1))

    def on_resize(self, event: events.Resize) -> None:
        """The meters depend on the width; `self.size` is still the one before."""
        if self.is_running:
            self.show_meters(event.size)

    # ---- asking and answering

    def on_prompt_submitted(self, message: Prompt.Submitted) -> None:
        """Enter was pressed."""
        text = message.text
        if is_command(text):
            self.prompt.take()
            self.run_command(text)
        elif self.live.answering:
            self.tell("an answer is being written; Esc stops it", "warning")
        else:
            self.prompt.take()
            self.ask(text)

    def ask(self, text: str) -> None:
        """Send a question, or the new text of one that is being edited."""
        message, self.editing = self.editing, None
        self.show_mode("")
        asked = self.commands.with_attachments(text)
        if message is not None:
            self.start(lambda: self.desk.edit(message, asked))
        else:
            self.start(lambda: self.desk.send(asked))

    def run_command(self, line: str) -> None:
        """A slash command."""
        try:
            command, rest = parse_command(line) if line.strip() != "/" else (COMMANDS[0], "")
            self.commands.run(command.name, rest)
        except LocalLLMError as error:
            self.tell(str(error), "error")

    def load_model(self) -> None:
        """Load in the background, so that the first answer comes at once; another model that is loading is given up."""
        if self.live.answering or self.live.loads(self.desk.backend):
            return
        if self.busy:
            self.live.abandon()
        self.start(None)

    def start(self, make: Callable[[], Generator[SessionEvent, None, None]] | None) -> None:
        """Load the model if needed and stream an answer. One at a time."""
        self.live.start(make)

    def stop(self) -> None:
        """End the present answer; its part stays."""
        self.live.stop()

    # ---- keys

    def action_command(self, name: str) -> None:
        """Run a slash command by its name."""
        if len(self.screen_stack) == 1:
            self.run_command(f"/{name}")

    def action_pick(self, step: int) -> None:
        """Pick a turn, and let its keys work."""
        self.transcript.focus()
        self.transcript.action_pick(step)

    def action_page(self, step: int) -> None:
        """Scroll the transcript by a page, wherever the cursor is."""
        (self.transcript.scroll_page_up if step < 0 else self.transcript.scroll_page_down)(animate=False)

    def action_end(self) -> None:
        """Go to the newest text."""
        self.transcript.scroll_end(animate=False, immediate=True)

    def action_interrupt(self) -> None:
        """Ctrl-C: stop the answer or the loading; else copy what is selected; else ask whether to leave."""
        if self.busy:
            self._stop_by_key()
            return
        selected = self.screen.get_selected_text() or (self.prompt.selected_text if self.prompt.has_focus else "")
        if selected:
            self.copy(selected)
        elif isinstance(self.screen, ConfirmScreen):
            self.exit()
        else:
            self.ask_to_leave()

    def ask_to_leave(self) -> None:
        """Everything is on disk, but leaving by accident is a nuisance."""

        def answered(yes: bool | None) -> None:
            if yes:
                self.exit()

        self.push_screen(ConfirmScreen("Leave? The chat is kept.", "leave"), answered)

    def action_escape(self) -> None:
        """Esc: stop the answer or the loading, give up an edit, unpick, and back to the prompt."""
        if self.busy:
            self._stop_by_key()
        elif self.editing is not None:
            self.editing = None
            self.show_mode("")
            self.prompt.take()
        self.transcript.pick(None)
        self.prompt.focus()

    def _stop_by_key(self) -> None:
        """A model that is loading is given up, for another one perhaps."""
        if self.live.loading:
            self.live.abandon()
            self.commands.choose_model()
        else:
            self.stop()

    def action_leave(self) -> None:
        """Leave at once; a running answer is stopped and kept."""
        self.exit()

    # ---- prompt help

    def on_text_area_changed(self) -> None:
        """Suggest commands while one is typed."""
        text = self.prompt.text
        shown = []
        if text.startswith("/") and "\n" not in text and " " not in text:
            shown = [command for command in COMMANDS if command.name.startswith(text[1:])][:SUGGESTIONS]
        box = self.screen_stack[0].query_one("#suggestions", Static)
        if not shown and not box.has_class("shown"):
            return
        box.set_class(bool(shown), "shown")
        rows = [
            Content.assemble(
                (f"/{command.name}", "bold $text-primary"),
                f" {command.arguments}".ljust(20 - len(command.name)),
                (command.help, "$foreground 60%"),
            )
            for command in shown
        ]
        box.update(Content("\n").join(rows))

    def on_prompt_completed(self, message: Prompt.Completed) -> None:
        """Tab: the first command that fits, else on to the transcript."""
        fitting = [command for command in COMMANDS if f"/{command.name}".startswith(message.text)]
        if message.text.startswith("/") and fitting:
            self.prompt.text = ""
            self.prompt.insert(f"/{fitting[0].name}{' ' if fitting[0].arguments else ''}")
        else:
            self.action_pick(-1)

    def on_transcript_action(self, message: Transcript.Action) -> None:
        """Something is to be done with a turn."""
        try:
            self.commands.act(message.message, message.action)
        except LocalLLMError as error:
            self.tell(str(error), "error")

    # ---- telling

    def tell(self, text: str, severity: str = "information") -> None:
        """A message that goes away by itself; errors stay longer."""
        kind: Any = severity
        self.notify(visible(text)[:1000], severity=kind, timeout=12 if severity == "error" else 5, markup=False)

    def show_mode(self, text: str) -> None:
        """A line above the prompt that says what Enter does now; an empty text hides it."""
        line = self.screen_stack[0].query_one("#mode", Static)
        line.set_class(bool(text), "shown")
        line.update(Content(text))

    def copy(self, text: str) -> None:
        """To the terminal's clipboard (OSC 52)."""
        self.copy_to_clipboard(text)
        self.tell(f"copied {len(text)} characters")

    def _fatal_error(self) -> None:
        """A defect of ours ends the app with a line that can be reported, not with pages of the program's insides."""
        self.panic(Text(defect(self._exception or RuntimeError("unknown"))))

    async def on_unmount(self) -> None:
        """Stop the answer, so that its part is written, and free the model."""
        self.live.end(PATIENCE)
        with contextlib.suppress(LocalLLMError):
            self.desk.close()


def defect(error: BaseException) -> str:
    """What is told of an exception that nobody expected: what, where, and what to do."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    what = f"{type(error).__name__}{where}: {visible_line(str(error), 300)}"
    return (
        f"error: a defect of localllm ended the chat: {what}\n"
        "  everything is kept, `localllm chat --last` goes on; please report the line above"
    )

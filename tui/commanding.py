"""What the slash commands, the palette, the keys and the buttons of a turn do."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from textual.app import SuspendNotSupported

from localllm.chat.attachment import attach, attached_name
from localllm.chat.visible import counted, visible_line
from localllm.errors import LocalLLMError, RequestError

if TYPE_CHECKING:
    from collections.abc import Callable

    from localllm.conversations import Message

    from .app import ChatApp


class Commands:
    """Handlers by command name. They raise LocalLLMError, which the app shows."""

    def __init__(self, app: ChatApp) -> None:
        self._app = app
        self._attached: list[str] = []
        self._waiting: Callable[[], None] | None = None  # what to do when the present answer has ended
        self._handlers: dict[str, Callable[[str], None]] = {
            "help": lambda _: self._help(),
            "new": lambda _: self.when_idle(self._new),
            "chats": self._chats,
            "open": self._open,
            "title": self._title,
            "delete": lambda _: self.when_idle(lambda: self.delete(None)),
            "undo": lambda _: self.when_idle(self.undo),
            "retry": lambda _: self._start_checked("user", app.desk.regenerate),
            "continue": lambda _: self._start_checked("assistant", app.desk.resume),
            "edit": self._edit,
            "branch": lambda _: self.when_idle(lambda: self._branch(None, 1)),
            "model": self._model,
            "system": self._system,
            "set": self._set,
            "attach": self._attach,
            "copy": self._copy,
            "export": lambda name: app.tell(f"saved as {app.desk.export(name)}"),
            "import": self._import,
            "stats": lambda _: self._plan(),
            "plan": lambda _: self._plan(),
            "theme": self._theme,
            "editor": lambda _: self._editor(),
            "quit": lambda _: app.exit(),
        }

    def run(self, name: str, rest: str) -> None:
        """A command with what stands behind it."""
        self._handlers[name](rest)

    def act(self, message: int, action: str) -> None:
        """A button or key on a turn."""
        name, _, argument = action.partition(" ")
        turn = self._app.desk.store.message(message)
        if name == "copy":
            self._app.copy(turn.content)
        elif name == "copy-code":
            self._copy_code(message, int(argument))
        elif name == "edit" and turn.role == "user":
            self._begin_edit(turn)
        elif name == "edit":
            raise RequestError("only a question can be edited; r asks for another answer")
        elif name == "retry":
            self.when_idle(lambda: self._retry_at(turn))
        elif name == "continue":
            self.run("continue", "")
        elif name == "branch":
            self.when_idle(lambda: self._branch(message, int(argument)))

    def when_idle(self, action: Callable[[], None]) -> None:
        """Do it now, or stop the present answer and do it then; a model may go on loading meanwhile."""
        if self._app.live.answering:
            self._waiting = action
            self._app.stop()
        else:
            self._do(action)

    def _do(self, action: Callable[[], None]) -> None:
        try:
            action()
        except LocalLLMError as error:
            self._app.tell(str(error), "error")

    def next_waiting(self) -> None:
        """The present answer has ended."""
        action, self._waiting = self._waiting, None
        if action is not None:
            self._app.call_later(self._do, action)

    def with_attachments(self, text: str) -> str:
        """A question with the files that were attached to it."""
        parts = [*self._attached, text]
        self._attached.clear()
        return "\n".join(parts)

    # ---- chats

    def _new(self) -> None:
        self._app.desk.new()
        self._app.reload()
        self._app.load_model()
        self._app.prompt.focus()

    def _chats(self, words: str) -> None:
        from .screens.chats import ChatsScreen

        def chosen(number: int | None) -> None:
            if number is not None:
                self.when_idle(lambda: self.open_chat(number))
            else:
                self._app.reload()

        self._app.push_screen(ChatsScreen(self._app.desk, words), chosen)

    def _open(self, text: str) -> None:
        if not text.isdecimal():
            self._chats(text)
            return
        number = int(text)
        self._app.desk.store.conversation(number)
        self.when_idle(lambda: self.open_chat(number))

    def open_chat(self, number: int) -> None:
        """Go on with another chat; its model is loaded if it is another one."""
        self._app.desk.open(number)
        self._app.reload()
        self._app.load_model()
        self._app.prompt.focus()

    def _title(self, text: str) -> None:
        if not text:
            raise RequestError("which title? /title TEXT")
        self._app.desk.rename(text)
        self._app.show_title()

    def delete(self, number: int | None) -> None:
        """Into the bin, and say how to take it out."""
        self._app.desk.delete(number)
        self._app.reload()
        self._app.tell("deleted; /undo takes it back")

    def undo(self) -> None:
        """The last deleted chat is back, and shown."""
        self.open_chat(self._app.desk.undo_delete())

    # ---- turns

    def _start_checked(self, role: str, make: Callable[[], object]) -> None:
        """Say at once when there is nothing to repeat or continue."""
        line = self._app.desk.messages()
        if not any(message.role == role for message in line):
            raise RequestError("there is no question yet" if role == "user" else "there is no answer to continue")
        desk = self._app.desk
        again = desk.regenerate if make == desk.regenerate else desk.resume
        self.when_idle(lambda: self._app.start(again))

    def _retry_at(self, turn: Message) -> None:
        """Another answer in this place: the line is cut behind the question first."""
        desk = self._app.desk
        question = turn.id if turn.role == "user" else turn.parent
        if question is None or desk.conversation is None:
            raise RequestError("there is no question before this turn")
        desk.store.rewind(desk.conversation, question)
        self._app.start(desk.regenerate)

    def _edit(self, text: str) -> None:
        questions = [message for message in self._app.desk.messages() if message.role == "user"]
        if not questions:
            raise RequestError("there is no question yet")
        if text:
            self.when_idle(lambda: self._app.start(lambda: self._app.desk.edit(questions[-1].id, text)))
        else:
            self._begin_edit(questions[-1])

    def _begin_edit(self, turn: Message) -> None:
        self._app.editing = turn.id
        self._app.show_mode("editing: Enter asks anew as another version, Esc gives up")
        self._app.prompt.fill(turn.content)
        self._app.prompt.focus()

    def _branch(self, message: int | None, step: int) -> None:
        self._app.desk.next_branch(message, step)
        self._app.reload()

    def _copy(self, text: str) -> None:
        answers = [message for message in self._app.desk.messages() if message.role == "assistant"]
        if not answers:
            raise RequestError("there is no answer to copy")
        if text.isdecimal():
            self._copy_code(answers[-1].id, int(text))
        else:
            self._app.copy(answers[-1].content)

    def _copy_code(self, message: int, number: int) -> None:
        turn = next((turn for turn in self._app.transcript.turns if turn.message == message), None)
        codes = turn.document.codes if turn is not None else []
        if not 1 <= number <= len(codes):
            there = counted(len(codes), "code block") if codes else "no code block"
            raise RequestError(f"the answer has {there}")
        self._app.copy(codes[number - 1].text)

    # ---- the model and how it answers

    def welcome(self) -> None:
        """No model is here: offer to fetch the default one."""
        from .screens.models import ModelsScreen
        from .screens.welcome import WelcomeScreen

        def answered(action: str | None) -> None:
            if action == "pull":
                screen = ModelsScreen(self._app.desk, pull=self._app.desk.model)
                self._app.push_screen(screen, self._use)
            elif action == "choose":
                self._app.push_screen(ModelsScreen(self._app.desk), self._use)
            elif action == "quit":
                self._app.exit()

        self._app.push_screen(WelcomeScreen(self._app.desk), answered)

    def _model(self, name: str) -> None:
        from .screens.models import ModelsScreen

        if name and self._app.desk.models.is_here(name):
            self._use(name)
        else:
            self._app.push_screen(ModelsScreen(self._app.desk, pull=name or None), self._use)

    def choose_model(self) -> None:
        """The picker, where it is not open already."""
        from .screens.models import ModelsScreen

        if not isinstance(self._app.screen, ModelsScreen):
            self._app.push_screen(ModelsScreen(self._app.desk), self._use)

    def _use(self, name: str | None) -> None:
        desk = self._app.desk
        if name is None:
            if not self._app.busy and not desk.models.is_here(desk.model):
                self.welcome()
            return

        def change() -> None:
            if name != desk.model or not desk.models.is_here(name):
                desk.use(name)
            self._app.reload()
            self._app.load_model()

        self.when_idle(change)

    def _system(self, text: str) -> None:
        if not text:
            self._set("")
            return
        self._app.desk.system = "" if text == "-" else text
        self._app.tell("system prompt changed" if self._app.desk.system else "system prompt removed")

    def _set(self, text: str) -> None:
        from .screens.settings import SettingsScreen

        name, _, value = text.partition(" ")
        if not name:
            self._app.push_screen(SettingsScreen(self._app.desk))
            return
        self._app.desk.set_sampling(name, "" if value.strip() == "-" else value)
        shown = ", ".join(f"{key} {value}" for key, value in self._app.desk.effective_sampling.items())
        self._app.tell(shown)

    def _plan(self) -> None:
        from .screens.plan import PlanScreen

        self._app.push_screen(PlanScreen(self._app.desk, self._app.readings))

    # ---- files and the rest

    def _attach(self, name: str) -> None:
        if not name:
            raise RequestError("which file? /attach FILE")
        self._attached.append(attach(name))
        names = ", ".join(visible_line(attached_name(part), 40) for part in self._attached)
        self._app.show_mode(f"{counted(len(self._attached), 'file')} attached, sent with the next question: {names}")

    def _import(self, name: str) -> None:
        if not name:
            raise RequestError("which file? /import FILE")
        numbers = self._app.desk.import_file(name)
        self._app.tell(f"imported {counted(len(numbers), 'chat')}")
        if len(numbers) == 1:
            self.when_idle(lambda: self.open_chat(numbers[0]))

    def _theme(self, name: str) -> None:
        app = self._app
        if not name:
            app.search_themes()
        elif name in app.available_themes:
            app.theme = name
        else:
            raise RequestError(f"there is no theme {visible_line(name, 40)}", hint=", ".join(app.available_themes))

    def _editor(self) -> None:
        """Write the question in $VISUAL or $EDITOR; the app waits."""
        app = self._app
        command = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "question.md"
            path.write_text(app.prompt.whole_text, encoding="utf-8")
            try:
                with app.suspend():
                    status = subprocess.run([*command, str(path)], check=False).returncode
            except SuspendNotSupported:
                raise RequestError("an editor cannot have the screen here", hint="Ctrl-J begins a new line") from None
            except OSError as error:
                raise RequestError(f"{command[0]} cannot be started: {error.strerror}", hint="set EDITOR") from None
            app.refresh(layout=True)
            if status:
                raise RequestError(f"{command[0]} ended with status {status}; the question is unchanged")
            text = path.read_text(encoding="utf-8", errors="replace").rstrip("\n")
        app.prompt.take()
        app.prompt.fill(text)
        app.prompt.focus()

    def _help(self) -> None:
        from .screens.help import HelpScreen

        self._app.push_screen(HelpScreen())

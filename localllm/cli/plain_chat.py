"""A chat in lines: every terminal, pipe and screen reader can follow it. Nothing is drawn over."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, TextIO

import click

from localllm.chat.attachment import attach, attached_name
from localllm.chat.commands import COMMANDS, is_command, parse_command
from localllm.chat.session import AnswerDelta, AnswerFinished
from localllm.chat.visible import visible, visible_line
from localllm.errors import LocalLLMError, RequestError

from .progress import load_progress

if TYPE_CHECKING:
    from collections.abc import Generator

    from localllm.chat.desk import ChatDesk
    from localllm.chat.session import SessionEvent

MANY = 20  # chats that a list shows
BLOCK = '"""'  # begins and ends a question of several lines


class PlainChat:
    """Reads questions from standard input until its end or /quit; answers go to standard output, notes to stderr."""

    def __init__(self, desk: ChatDesk, lines: TextIO | None = None) -> None:
        self._desk = desk
        self._lines = lines or sys.stdin
        self._talks = self._lines.isatty()
        self._attached: list[str] = []

    def run(self) -> None:
        """The whole conversation."""
        if self._talks:
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401  # line editing and history of `input`
            self._note(f"model {visible_line(self._desk.model)}; /help for commands, {BLOCK} for several lines")
        try:
            self._show()
            self._tell_missing()
            self._ready()
            while self._turn():
                pass
        finally:
            self._desk.close()

    def _ready(self) -> None:
        """Fetch and load the model, with progress on stderr."""
        self._fetch(self._desk.model)
        with load_progress() as progress:
            note = self._desk.load(progress)
            progress.done()
        if note:
            self._note(visible_line(note))

    def _show(self) -> None:
        """What was said so far."""
        for message in self._desk.messages():
            if not message.is_blank:
                click.echo(f"{message.role}: {visible(message.content)}\n")

    def _tell_missing(self) -> None:
        """Another model answers than the chat had; one that nobody asked for is not fetched for that."""
        missing, answers = self._desk.missing_model, self._desk.model
        if missing and not self._desk.models.is_here(answers):
            raise RequestError(
                f"the chat was held with {visible_line(missing, 60)}, which is not here",
                hint="name the model to go on with: localllm chat MODEL --last, or --open NUMBER",
            )
        if missing:
            self._note(f"{visible_line(missing, 60)} is not here; {visible_line(answers, 60)} answers")

    def _fetch(self, model: str) -> None:
        from .pull_progress import open_view

        if not self._desk.models.is_here(model):
            with contextlib.closing(open_view(False)) as view:
                self._desk.models.pull(model, view)

    def _turn(self) -> bool:
        """One line or block of input; False at the end."""
        try:
            text = self._read()
        except KeyboardInterrupt:
            self._note("\nto leave: /quit or Ctrl-D")
            return True
        if text is None:
            return False
        if not text.strip():
            return True
        try:
            if is_command(text):
                return self._command(text)
            self._answer(self._desk.send("\n".join([*self._attached, text])))
            self._attached.clear()
        except LocalLLMError as error:
            self._error(error)
        return True

    def _read(self) -> str | None:
        first = self._line("> ")
        if first is None or first.strip() != BLOCK:
            return first
        block: list[str] = []
        while (line := self._line(". ")) is not None and line.strip() != BLOCK:
            block.append(line)
        return "\n".join(block)

    def _line(self, prompt: str) -> str | None:
        if self._talks:
            try:
                return input(prompt)
            except EOFError:
                click.echo()
                return None
        line = self._lines.readline()
        return line.rstrip("\n") if line else None

    def _answer(self, events: Generator[SessionEvent, None, None]) -> None:
        """Print an answer as it comes; Ctrl-C ends it and keeps the part."""
        kind = ""
        try:
            for event in events:
                if isinstance(event, AnswerDelta):
                    if event.kind != kind:
                        if event.kind == "reasoning":
                            self._note("thinking:")
                        elif kind:
                            self._note("\nanswer:")
                        kind = event.kind
                    click.echo(visible(event.text), nl=False)
                    sys.stdout.flush()
                elif isinstance(event, AnswerFinished):
                    click.echo()
                    self._finished(event)
        except KeyboardInterrupt:
            self._desk.stop()
            events.close()
            self._note("\nstopped; /continue goes on")

    def _finished(self, end: AnswerFinished) -> None:
        if end.error is not None:
            self._note(f"error: {visible(end.error)}")
        if end.note is not None:
            self._note(visible(end.note))
        if self._talks:
            self._note(f"[{end.usage.completion_tokens} tokens, {end.tokens_per_second:.1f} a second]")

    def _command(self, line: str) -> bool:
        command, rest = parse_command(line) if line.strip() != "/" else (COMMANDS[0], "")
        if command.app_only:
            raise RequestError(f"/{command.name} needs the app", hint="start localllm chat without --plain")
        if command.name == "quit":
            return False
        actions = {
            "help": self._help,
            "new": self._new,
            "chats": self._chats,
            "open": self._open,
            "title": self._desk.rename,
            "delete": lambda _: self._desk.delete(),
            "undo": lambda _: self._open(str(self._desk.undo_delete())),
            "retry": lambda _: self._answer(self._desk.regenerate()),
            "continue": lambda _: self._answer(self._desk.resume()),
            "edit": self._edit,
            "branch": lambda _: click.echo(visible(self._desk.next_branch().content)),
            "model": self._model,
            "system": self._system,
            "set": self._set,
            "attach": self._attach,
            "export": lambda name: self._note(f"saved as {visible_line(self._desk.export(name))}"),
            "import": self._import,
            "stats": self._stats,
        }
        actions[command.name](rest)
        return True

    def _help(self, _: str) -> None:
        for command in COMMANDS:
            if not command.app_only:
                click.echo(f"/{command.name} {command.arguments}".ljust(24) + command.help)

    def _chats(self, words: str) -> None:
        if words:
            hits = list(self._desk.store.search(words))
            for hit in hits:
                excerpt = visible_line(hit.excerpt.replace("\x02", "").replace("\x03", ""))
                click.echo(f"{hit.conversation.id:5} {visible_line(hit.conversation.title, 40)}: {excerpt}")
            if not hits:
                self._note("nothing found")
            return
        for chat in self._desk.store.conversations(limit=MANY):
            click.echo(f"{chat.id:5} {visible_line(chat.title, 60)} ({visible_line(chat.model, 40)})")

    def _new(self, _: str) -> None:
        self._desk.new()
        self._ready()

    def _open(self, number: str) -> None:
        if not number.isdecimal():
            raise RequestError("which chat? /open NUMBER", hint="/chats shows the numbers")
        self._desk.open(int(number))
        self._tell_missing()
        self._ready()
        self._show()

    def _edit(self, text: str) -> None:
        questions = [message for message in self._desk.messages() if message.role == "user"]
        if not questions or not text:
            raise RequestError("there is no question yet" if text else "give the new text: /edit TEXT")
        self._answer(self._desk.edit(questions[-1].id, text))

    def _model(self, name: str) -> None:
        if name:
            self._fetch(name)
            self._desk.use(name)
            try:
                self._ready()
            except LocalLLMError as error:
                self._error(error)
                if self._desk.model != name:  # the model before it answers again
                    self._ready()
        for choice in [] if name else self._desk.models.choices():
            mark = "*" if choice.name == self._desk.model else " "
            size = "" if choice.size_bytes is None else f"{choice.size_bytes / 1e9:.1f} GB"
            where = "here" if choice.here else "to be pulled"
            line = (
                f"{mark} {visible_line(choice.name, 60):32} {size:>8}  {where}, fits: {choice.fits}, {choice.licence}"
            )
            click.echo(line)

    def _attach(self, name: str) -> None:
        if not name:
            raise RequestError("which file? /attach FILE")
        self._attached.append(attach(name))
        names = ", ".join(visible_line(attached_name(part), 40) for part in self._attached)
        self._note(f"sent with the next question: {names}")

    def _system(self, text: str) -> None:
        if text:
            self._desk.system = "" if text == "-" else text
        click.echo(f"system prompt: {visible(self._desk.system) or 'none'}")

    def _set(self, text: str) -> None:
        name, _, value = text.partition(" ")
        if name:
            self._desk.set_sampling(name, "" if value.strip() == "-" else value)
        click.echo(", ".join(f"{key} {value}" for key, value in self._desk.effective_sampling.items()))

    def _import(self, name: str) -> None:
        numbers = self._desk.import_file(name)
        self._note(f"imported {len(numbers)} chats; /chats lists them")

    def _stats(self, _: str) -> None:
        context, state = self._desk.backend.context(), self._desk.backend.state()
        click.echo(visible_line(state.description, 400))
        room = "unknown" if context.limit is None else str(context.limit)
        click.echo(
            f"context: {context.kept} kept, {context.sunk} of them for ever, {context.evicted} evicted, room for {room}"
        )
        for what, sizes in (("weights", state.weight_bytes), ("KV", state.kv_bytes)):
            click.echo(f"{what}: " + ", ".join(f"{size / 1e6:.0f} MB on {device}" for device, size in sizes))

    def _note(self, text: str) -> None:
        click.echo(text, err=True)

    def _error(self, error: LocalLLMError) -> None:
        self._note(f"error: {visible(str(error))}")

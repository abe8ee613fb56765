"""All that a front end does with chats, without a screen: the app and the plain line mode share it."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from localllm.conversations import import_chats, to_json, to_markdown
from localllm.errors import LocalLLMError, RequestError, SessionError
from localllm.paths import expand_user

from .sampling import changed, effective
from .session import ChatSession, messages_for_model
from .visible import visible_line

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from localllm.conversations import Conversation, ConversationStore, Message
    from localllm.kernels.executor import LoadProgress

    from .backend import ChatBackend
    from .models import ModelSource
    from .session import SessionEvent

LONGEST_IMPORT = 512 << 20  # bytes


class ChatDesk:
    """One chat at a time, with one model. A new chat is stored with its first question, so that none are empty.

    What a model computed for a chat is saved when the chat is left, and restored when it is opened again. `load` does
    that, and frees a model that was left, so that only the thread that may wait has to.
    """

    def __init__(
        self,
        store: ConversationStore,
        models: ModelSource,
        model: str,
        *,
        system: str = "",
        sampling: Mapping[str, Any] | None = None,
    ) -> None:
        self.store = store
        self.models = models
        self.backend: ChatBackend = models.open(model)
        self._conversation: int | None = None
        self._session: ChatSession | None = None
        self._system = self._new_system = system
        self._sampling: dict[str, Any] = dict(sampling or {})
        self._new_sampling = dict(self._sampling)
        self._deleted: list[int] = []
        self._postponed: deque[Callable[[], None]] = deque()  # slow work of leaving a chat or a model
        self._loaded: ChatBackend | None = None  # the last model that could be loaded
        self._switching = threading.Lock()
        self._leaving = threading.Lock()  # held by the thread that does that work
        self._returning: int | None = None  # the chat that was opened and not restored yet
        self.missing_model = ""  # that of the chat that was opened, where it is not here and another one answers
        self._unnamed = False  # whether the present chat keeps another model's name until this one is loaded

    # ---- the present chat

    @property
    def model(self) -> str:
        """The name of the model that answers."""
        return self.backend.name

    @property
    def conversation(self) -> int | None:
        """The number of the present chat; None before its first question."""
        return self._conversation

    @property
    def title(self) -> str:
        """The title of the present chat."""
        return self._stored.title if self._conversation is not None else ""

    @property
    def system(self) -> str:
        """The system prompt of the present chat."""
        return self._stored.system if self._conversation is not None else self._system

    @system.setter
    def system(self, text: str) -> None:
        if self._conversation is None:
            self._system = text
        else:
            self.store.set_field(self._conversation, "system", text)

    @property
    def sampling(self) -> dict[str, Any]:
        """The present chat's own sampling values."""
        return self._stored.sampling if self._conversation is not None else dict(self._sampling)

    @property
    def effective_sampling(self) -> dict[str, Any]:
        """What the next answer is sampled with."""
        return effective(self.backend.sampling, self.sampling)

    def set_sampling(self, name: str, text: str) -> None:
        """Change one value from what a person typed; an empty text resets it."""
        sampling = changed(self.sampling, name, text)
        if self._conversation is None:
            self._sampling = sampling
        else:
            self.store.set_sampling(self._conversation, sampling)

    def messages(self) -> list[Message]:
        """The current line of turns."""
        return self.store.path_to(self._stored.leaf) if self._conversation is not None else []

    # ---- answers

    def load(self, progress: Callable[[LoadProgress], None]) -> str:
        """Finish with what was left before, load the model if it is not, and restore the chat.

        Returns what the person should know, mostly nothing.
        """
        self._finish_leaving()
        backend = self.backend
        try:
            backend.load(progress)
        except LocalLLMError as error:
            if self._go_back(backend):
                error.message += f"; {visible_line(self.model, 60)} stays in use"
            raise
        self._loaded = backend
        if self._unnamed and backend is self.backend:
            self._name_model()
        return self.restore()

    def _go_back(self, failed: ChatBackend) -> bool:
        """The model before one that could not be loaded answers again, unless another was chosen meanwhile."""
        with self._switching:
            if self._loaded is None or self._loaded is failed or self.backend is not failed:
                return False
            self.backend, self._session = self._loaded, None
        self._name_model()
        return True

    def restore(self) -> str:
        """Put back what was computed for the chat that was opened, where it was saved; returns as `load`."""
        number, self._returning = self._returning, None
        path = self.store.caches.find(number) if number is not None and number == self._conversation else None
        if number is None or path is None:
            return ""
        try:
            self.backend.restore(path)
        except SessionError as error:
            self.store.caches.discard(number)
            return f"{error.message}: the chat is read anew"
        return ""

    def send(self, text: str) -> Generator[SessionEvent, None, None]:
        """Ask; the chat is stored now if it is new."""
        if self._conversation is None:
            self._conversation = self.store.create(self.model, system=self._system, sampling=self._sampling)
        return self._current().send(text)

    def edit(self, message: int, text: str) -> Generator[SessionEvent, None, None]:
        """Ask again with another text in place of a question."""
        return self._current().edit(message, text)

    def regenerate(self) -> Generator[SessionEvent, None, None]:
        """Another answer to the last question."""
        return self._current().regenerate()

    def resume(self) -> Generator[SessionEvent, None, None]:
        """Go on with an answer that was stopped."""
        return self._current().resume()

    def stop(self) -> None:
        """End the answer that is being written, from any thread."""
        if self._session is not None:
            self._session.stop()

    def _leave(self) -> None:
        """What was computed for the present chat is saved at the next `load`, if anything was."""
        if self._conversation is not None and self._session is not None:
            self._postponed.append(partial(self._save, self.backend, self._conversation))
        self._session = self._returning = None
        self._unnamed, self.missing_model = False, ""
        self.backend.forget()

    def _finish_leaving(self) -> None:
        with self._leaving:
            while self._postponed:
                self._postponed.popleft()()

    def _save(self, backend: ChatBackend, conversation: int) -> None:
        """Without it the chat is only slower to go on, so a full disk or a template that refuses is not told."""
        caches = self.store.caches
        with contextlib.suppress(LocalLLMError):
            chat = self.store.conversation(conversation)
            messages = messages_for_model(chat, self.store.path_to(chat.leaf))
            if caches.most_bytes and chat.deleted is None:
                backend.save(messages, caches.path(conversation), caches.most_bytes)
        self.store.prune_caches()

    def next_branch(self, message: int | None = None, step: int = 1) -> Message:
        """Show another version of a turn (None: of the last one that has several). RequestError when there is none."""
        for turn in [self.store.message(message)] if message is not None else reversed(self.messages()):
            versions = self.store.branches(turn.id)
            if len(versions) > 1:
                place = [version.id for version in versions].index(turn.id)
                chosen = versions[(place + step) % len(versions)]
                self.store.choose(chosen.id)
                return chosen
        raise RequestError("there is only one version of this chat", hint="/retry and /edit make others")

    # ---- chats

    def new(self) -> None:
        """Begin a new chat."""
        self._leave()
        self._conversation = None
        self._system, self._sampling = self._new_system, dict(self._new_sampling)

    def open(self, conversation: int, *, keep_model: bool = False) -> None:
        """Go on with a chat of the store, and with its model when that is here, or with the present one."""
        chat = self.store.conversation(conversation)
        if chat.deleted is not None:
            self.store.restore(conversation)
        self._leave()
        self._conversation = conversation
        if keep_model:
            self._unnamed = True
        elif chat.model and chat.model != self.model:
            if self.models.is_here(chat.model):
                self.use(chat.model)
            else:
                self.missing_model = chat.model
        self._returning = conversation

    def override(self, system: str | None, sampling: Mapping[str, Any]) -> None:
        """What is asked for now comes before what the chat that was opened has kept."""
        if system is not None:
            self.system = system
        if sampling and self._conversation is not None:
            self.store.set_sampling(self._conversation, {**self.sampling, **sampling})

    def use(self, model: str) -> None:
        """Answer with another model from now on; the present one is freed, and the chat gets the name, by `load`."""
        backend = self.models.open(model)
        with self._switching:
            self._postponed.append(self.backend.close)
            self.backend, self._session = backend, None
        self._unnamed, self.missing_model = True, ""

    def _name_model(self) -> None:
        self._unnamed = False
        if self._conversation is not None:
            self.store.set_field(self._conversation, "model", self.model)

    def rename(self, title: str) -> None:
        """Name the present chat."""
        if self._conversation is None:
            raise RequestError("an empty chat has no title yet")
        self.store.set_field(self._conversation, "title", " ".join(title.split()))

    def delete(self, conversation: int | None = None) -> None:
        """Put a chat (None: the present one) into the bin."""
        chosen = self._conversation if conversation is None else conversation
        if chosen is None:
            raise RequestError("there is nothing to delete")
        self.store.delete(chosen)
        self._deleted.append(chosen)
        if chosen == self._conversation:
            self.new()

    def undo_delete(self) -> int:
        """Take the chat that was deleted last out of the bin; returns its number."""
        if not self._deleted:
            binned = self.store.conversations(deleted=True, limit=1)
            if not binned:
                raise RequestError("the bin is empty")
            self._deleted.append(binned[0].id)
        chosen = self._deleted.pop()
        self.store.restore(chosen)
        return chosen

    def export(self, name: str = "") -> str:
        """Write the present chat to a new file, JSON for *.json, else Markdown; returns the format and where it is."""
        if self._conversation is None:
            raise RequestError("there is nothing to save yet")
        path = expand_user(name.strip() or f"{_file_name(self.title)}.md")
        text = (to_json if path.suffix == ".json" else to_markdown)(self.store, self._conversation)
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            raise RequestError(f"{path} exists already", hint="give another name: /export FILE") from None
        except (OSError, ValueError) as error:
            raise RequestError(f"{path} cannot be written: {_reason(error)}") from None
        return f"{'JSON' if path.suffix == '.json' else 'Markdown'} in {path.absolute()}"

    def import_file(self, name: str) -> list[int]:
        """Store the chats of a file; returns their numbers."""
        path = expand_user(name.strip().strip("'\""))
        try:
            with path.open("rb") as file:
                data = file.read(LONGEST_IMPORT + 1)
        except (OSError, ValueError) as error:
            raise RequestError(f"{path} cannot be read: {_reason(error)}") from None
        return import_chats(self.store, data, model=self.model)

    def close(self) -> None:
        """Save what was computed and free the model; the store is the caller's."""
        try:
            self._leave()
            self._finish_leaving()
        finally:
            self.backend.close()

    @property
    def _stored(self) -> Conversation:
        if self._conversation is None:
            raise RequestError("this chat has no question yet")
        return self.store.conversation(self._conversation)

    def _current(self) -> ChatSession:
        if self._session is None:
            self._session = ChatSession(self.store, self.backend, self._stored.id)
        return self._session


def _file_name(title: str) -> str:
    kept = "".join(character if character.isalnum() else "-" for character in title.lower())
    return "-".join(part for part in kept.split("-") if part)[:60] or "chat"


def _reason(error: Exception) -> str:
    """Without the number and the path that Python puts around it."""
    return str((isinstance(error, OSError) and error.strerror) or error)

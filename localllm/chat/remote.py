"""A chat with a model behind an OpenAI-compatible endpoint: our own server, or another program's."""

from __future__ import annotations

import json
import queue
import threading
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from localllm.errors import ConfigurationError, ExecutionError, RequestError
from localllm.events import Finished, TextDelta, Timings, Usage

from .backend import ContextState, ModelState
from .reasoning import KNOWN_TAGS
from .server_errors import reported
from .visible import visible_line

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence
    from pathlib import Path

    from localllm.events import Event, FinishReason
    from localllm.kernels.executor import LoadProgress

    from .http_stream import HttpStream

CONTEXT_KEYS = ("context_length", "max_model_len", "max_context_length", "n_ctx")  # of /models, by server
REASONING_KEYS = ("reasoning_content", "reasoning")  # of a delta, by server
TAGS = KNOWN_TAGS[0]
POLL = 0.1  # seconds between looks at whether the answer was cancelled


class RemoteBackend:
    """`url` ends in /v1 as OpenAI clients want it. `model` None: the first one that the server lists."""

    def __init__(self, url: str, model: str | None = None, *, api_key: str | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigurationError(
                f"{visible_line(url)} is no address of a server", hint="it looks like http://127.0.0.1:8080/v1"
            )
        self.url = url.rstrip("/")
        self.name = model or ""
        self.sampling: Mapping[str, Any] = {}
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._context = ContextState()
        self._cancelled = threading.Event()

    def models(self) -> list[str]:
        """Names that the server lists."""
        return [str(entry.get("id")) for entry in self._listed()]

    def load(self, progress: Callable[[LoadProgress], None]) -> None:
        """Ask the server for its models; nothing is loaded here."""
        from localllm.kernels.executor import LoadProgress

        progress(LoadProgress(f"asking {self.url}"))
        listed = self._listed()
        if not listed:
            raise ExecutionError(f"{self.url} lists no models")
        if not self.name:
            self.name = str(listed[0].get("id"))
        entry = next((entry for entry in listed if entry.get("id") == self.name), None)
        if entry is None:
            names = ", ".join(visible_line(str(other.get("id")), 60) for other in listed[:8])
            raise RequestError(f"{self.url} has no model {visible_line(self.name, 80)!r}", hint=f"it has {names}")
        limits = [entry.get(key) for key in CONTEXT_KEYS]
        self._context = ContextState(limit=next((limit for limit in limits if isinstance(limit, int)), None))

    def stream(self, messages: Sequence[dict[str, Any]], sampling: dict[str, Any]) -> Generator[Event, None, None]:
        """Answer; sampling values that OpenAI's API does not know are sent as well, for servers that do."""
        from .http_stream import HttpStream

        self._cancelled.clear()
        asked = [{"role": message["role"], "content": message["content"]} for message in messages]
        body = {"model": self.name, "messages": asked, "stream": True, "stream_options": {"include_usage": True}}
        return self._events(HttpStream(f"{self.url}/chat/completions", {**sampling, **body}, self._headers))

    def cancel(self) -> None:
        """Drop the connection of the present answer, by which a server knows to stop."""
        self._cancelled.set()

    def save(self, messages: Sequence[dict[str, Any]], path: Path, most_bytes: int) -> None:
        """What was computed is the server's, and it keeps it or not."""

    def restore(self, path: Path) -> None:
        """Nothing was saved here."""

    def forget(self) -> None:
        """The room stays, what was in it goes."""
        self._context = ContextState(limit=self._context.limit)

    def context(self) -> ContextState:
        """Tokens of the conversation, as far as the server told."""
        return self._context

    def state(self) -> ModelState:
        """Where the model is; its memory is the server's."""
        return ModelState(description=f"{self.name} at {self.url}")

    def close(self) -> None:
        """Drop the connection, if there is one."""
        self._cancelled.set()

    def _listed(self) -> list[dict[str, Any]]:
        from .http_stream import get_json

        found = get_json(f"{self.url}/models", self._headers)
        entries = found.get("data") if isinstance(found, dict) else None
        if not isinstance(entries, list):
            raise ExecutionError(
                f"{self.url} does not answer like an OpenAI server", hint="does the address end in /v1?"
            )
        return [entry for entry in entries if isinstance(entry, dict)]

    def _events(self, stream: HttpStream) -> Generator[Event, None, None]:
        reader = _AnswerReader()
        try:
            stream.start()
            while not self._cancelled.is_set():
                try:
                    data = stream.get(POLL)
                except queue.Empty:
                    continue
                if data is None:
                    break
                yield from reader.push(data)
        finally:
            stream.close()
        if self._cancelled.is_set():
            return
        finished = reader.finish()
        usage = finished.usage
        total = usage.prompt_tokens + usage.completion_tokens
        evicted = usage.evicted_tokens
        self._context = ContextState(limit=self._context.limit, kept=max(0, total - evicted), evicted=evicted)
        yield finished


class _AnswerReader:
    """Turns the chunks of one answer into events, and measures from outside how fast they come."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._first: float | None = None
        self._last = self._started
        self._thinking = False
        self._chunks = 0
        self._reason: FinishReason | None = None
        self._usage: dict[str, Any] = {}

    def push(self, data: str) -> Generator[Event, None, None]:
        """Events of one chunk. Raises LocalLLMError for what the server says went wrong."""
        try:
            chunk = json.loads(data)
        except (ValueError, RecursionError):
            raise ExecutionError("the server sent something that is not JSON") from None
        if not isinstance(chunk, dict):
            raise ExecutionError("the server sent a chunk of an unknown form")
        if chunk.get("error"):
            raise reported(chunk["error"])
        if isinstance(chunk.get("usage"), dict):
            self._usage = chunk["usage"]
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else []:
            if isinstance(choice, dict):
                yield from self._choice(choice)

    def finish(self) -> Finished:
        """The end; an answer that broke off without a reason is an error."""
        if self._reason is None:
            raise ExecutionError("the server ended the answer without saying why", hint="continue it, or ask again")
        counted = self._usage.get("completion_tokens")
        details = self._usage.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, dict) else 0
        first = self._first if self._first is not None else self._last
        usage = Usage(
            prompt_tokens=_count(self._usage.get("prompt_tokens")),
            completion_tokens=_count(counted) if counted is not None else self._chunks,
            cached_tokens=_count(cached),
            evicted_tokens=_count(self._usage.get("evicted_tokens")),
            drafted_tokens=_count(self._usage.get("drafted_tokens")),
            accepted_tokens=_count(self._usage.get("accepted_tokens")),
        )
        wait = first - self._started
        return Finished(self._reason, usage, Timings(0.0, wait, wait, self._last - first))

    def _choice(self, choice: dict[str, Any]) -> Generator[Event, None, None]:
        delta = choice.get("delta")
        if isinstance(delta, dict):
            thought = next((delta[key] for key in REASONING_KEYS if isinstance(delta.get(key), str)), "")
            content = delta.get("content")
            yield from self._text(thought, content if isinstance(content, str) else "")
        reason = choice.get("finish_reason")
        if isinstance(reason, str):
            self._reason = "length" if reason == "length" else "stop"

    def _text(self, thought: str, content: str) -> Generator[Event, None, None]:
        if not thought and not content:
            return
        self._last = time.monotonic()
        if self._first is None:
            self._first = self._last
        self._chunks += 1
        if thought:
            yield TextDelta(thought if self._thinking else TAGS.opening + thought, (0,))
            self._thinking = True
        if content:
            yield TextDelta(TAGS.closing + content if self._thinking else content, (0,))
            self._thinking = False


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0

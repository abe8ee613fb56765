"""A chat backend that says what a test tells it to: for sessions, the plain chat and the terminal app."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from localllm.chat.backend import ContextState, LayerState, ModelState
from localllm.errors import SessionError
from localllm.events import Event, Finished, PromptProgress, TextDelta, Timings, Usage
from localllm.kernels.executor import LoadProgress

PATIENCE = 60.0  # seconds until a test that waits for something fails


@dataclass
class Gate:
    """A place in a script where the backend waits until the test opens it; `reached` tells that it is there."""

    reached: threading.Event = field(default_factory=threading.Event)
    opened: threading.Event = field(default_factory=threading.Event)

    def open(self) -> None:
        self.opened.set()

    def wait_until_reached(self) -> None:
        assert self.reached.wait(PATIENCE)


Piece = str | Exception | Gate


class ScriptedBackend:
    """Answers with the given pieces; an exception among them is raised, a gate holds the answer up."""

    def __init__(self, *pieces: Piece, name: str = "scripted", load: Sequence[LoadProgress | Exception | Gate] = ()):
        self.name = name
        self.sampling: Mapping[str, Any] = {}
        self.pieces: Sequence[Piece] = pieces
        self.load_steps = load
        self.loads = 0
        self.seen: list[list[dict[str, Any]]] = []
        self.sampled: list[dict[str, Any]] = []
        self.closed = 0
        self.restored: list[list[dict[str, Any]]] = []
        self.save_error: SessionError | None = None
        self.freed = False
        self.evicted = 0
        self._cancelled = threading.Event()
        self._context = ContextState(limit=4096)

    def load(self, progress: Callable[[LoadProgress], None]) -> None:
        self.loads += 1
        for step in self.load_steps:
            if isinstance(step, Exception):
                raise step
            if isinstance(step, Gate):
                self._wait(step)
            else:
                progress(step)

    def stream(self, messages: Sequence[dict[str, Any]], sampling: dict[str, Any]) -> Generator[Event, None, None]:
        self.seen.append(list(messages))
        self.sampled.append(sampling)
        self._cancelled.clear()
        return self._answer()

    def _answer(self) -> Generator[Event, None, None]:
        written = 0
        try:
            yield PromptProgress(3, 1, 3)
            for piece in self.pieces:
                if isinstance(piece, Exception):
                    raise piece
                if isinstance(piece, Gate):
                    self._wait(piece)
                    if self._cancelled.is_set():
                        return
                else:
                    written += 1
                    yield TextDelta(piece, (1,))
                    if self._cancelled.is_set():
                        return
            usage = Usage(3, written, 1, evicted_tokens=self.evicted)
            self._context = ContextState(4096, kept=3 + written - self.evicted, evicted=self.evicted)
            yield Finished("stop", usage, Timings(0, 0.5, 0.6, 1.0))
        finally:
            self.closed += 1

    def _wait(self, gate: Gate) -> None:
        gate.reached.set()
        for _ in range(int(PATIENCE * 100)):
            if gate.opened.wait(0.01) or self._cancelled.is_set():
                return
        raise AssertionError("nobody opened the gate")

    def cancel(self) -> None:
        self._cancelled.set()

    def save(self, messages: Sequence[dict[str, Any]], path: Path, most_bytes: int) -> None:
        if self.save_error is not None:
            raise self.save_error
        path.write_text(json.dumps(messages))

    def restore(self, path: Path) -> None:
        try:
            self.restored.append(json.loads(path.read_text()))
        except ValueError as error:
            raise SessionError("the saved session is damaged") from error

    def forget(self) -> None:
        self._context = ContextState(limit=4096)

    def context(self) -> ContextState:
        return self._context

    def state(self) -> ModelState:
        return ModelState(
            description=f"{self.name}, a script",
            weight_bytes=(("cpu", 98_000_000), ("gpu", 0)),
            kv_bytes=(("cpu", 12_000_000),),
            predicted_tokens_per_second=100.0,
            reasons=("hot layers first",),
            layers=tuple(LayerState(7_000_000, 2_000_000, 21_000_000, 3_000_000 * number) for number in (0, 4, 10)),
            ends=(("head, on the CPU", 14_000_000),),
        )

    def close(self) -> None:
        self.freed = True

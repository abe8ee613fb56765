"""A model source whose backends follow a script."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scripted_chat import Piece, ScriptedBackend

from localllm.chat.models import ModelChoice
from localllm.errors import DownloadError
from localllm.store.events import FileProgress, PullFinished, PullPlanned, Report


class ScriptedModels:
    """`here` are the names that need no pull; every backend answers with `pieces`."""

    def __init__(self, *pieces: Piece, here: Sequence[str] = ("scripted", "other")) -> None:
        self.pieces: Sequence[Piece] = pieces
        self.here = list(here)
        self.opened: list[ScriptedBackend] = []
        self.pulled: list[str] = []
        self.pull_step: Callable[[int], None] | None = None
        self.pull_error: DownloadError | None = None
        self.make: Callable[[str], ScriptedBackend] = lambda name: ScriptedBackend(*self.pieces, name=name)

    def default(self) -> str:
        return "scripted"

    def is_here(self, name: str) -> bool:
        return name in self.here

    def choices(self) -> list[ModelChoice]:
        here = [ModelChoice(n, 98_000_000, "Apache-2.0", "a script", True, "yes", "in memory") for n in self.here]
        return [
            *here,
            ModelChoice("large:70b", 40 * 10**9, "Llama [red]3[/red]", "far too large", False, "no", "needs 44 GB"),
            ModelChoice("middle:8b", 5 * 10**9, "MIT", "so so", False, "partly", "60% on the GPU"),
        ]

    def open(self, name: str) -> ScriptedBackend:
        backend = self.make(name)
        self.opened.append(backend)
        return backend

    def pull(self, name: str, report: Report) -> None:
        report(PullPlanned(name, "scripted", 1000, 1000, "MIT", ("model.gguf",)))
        for done in range(0, 1001, 250):
            report(FileProgress("model.gguf", done, 1000))
            if self.pull_step is not None:
                self.pull_step(done)
        if self.pull_error is not None:
            raise self.pull_error
        report(PullFinished(name, "/models/model.gguf", 1000, "0" * 64, 1000))
        self.pulled.append(name)
        self.here.append(name)

"""What a pull reports while it runs; terminal, `--json` and the chat's model list show the same events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PullPlanned:
    """Before the first byte: what will be fetched. Sizes are bytes; None when the server does not tell."""

    name: str
    source: str
    size_bytes: int | None
    download_bytes: int | None
    licence: str | None
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FitEstimated:
    """Whether the model fits into this computer's free memory with `context` tokens, and the speed to expect.

    Sizes are bytes. `tokens_per_second` is None when it does not fit or cannot be run; `problem` says why.
    """

    name: str
    weight_bytes: int
    kv_bytes: int
    context: int
    memory_bytes: int
    gpu_bytes: int
    fits: bool
    tokens_per_second: float | None
    problem: str | None


@dataclass(frozen=True, slots=True)
class FileProgress:
    """Bytes of a file that are on disk; `resumed_bytes` were there before this pull began."""

    file: str
    done_bytes: int
    total_bytes: int | None
    resumed_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Retrying:
    """A request failed in a way that may pass; the next try starts after `wait_seconds`."""

    file: str
    reason: str
    wait_seconds: float


@dataclass(frozen=True, slots=True)
class Phase:
    """A step without bytes to count: waiting for another pull, unpacking, verifying."""

    file: str
    text: str


@dataclass(frozen=True, slots=True)
class Note:
    """Something the user should know; the pull goes on."""

    text: str


@dataclass(frozen=True, slots=True)
class PullFinished:
    """The model is in the store."""

    name: str
    path: str
    size_bytes: int
    sha256: str
    fetched_bytes: int


PullEvent = PullPlanned | FitEstimated | FileProgress | Retrying | Phase | Note | PullFinished
Report = Callable[[PullEvent], None]


def ignore(event: PullEvent) -> None:
    """A report nobody reads."""

"""How a pull is shown: bars on a terminal, a line now and then elsewhere, JSON events for programs."""

from __future__ import annotations

import json
import re
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Protocol

import click

from localllm.store.events import (
    FileProgress,
    FitEstimated,
    Note,
    Phase,
    PullEvent,
    PullFinished,
    PullPlanned,
    Retrying,
)
from localllm.store.text import format_bytes, format_seconds, printable

from .terminal import rewrites_lines

if TYPE_CHECKING:
    from rich.progress import Progress

LINE_INTERVAL = 5.0  # seconds between plain progress lines
JSON_INTERVAL = 0.5


class PullView(Protocol):
    """Shows the events of a pull; `close` leaves the terminal as it was."""

    def __call__(self, event: PullEvent) -> None:
        """Show an event, from the thread that pulls."""

    def close(self) -> None:
        """Nothing more will come; may be called twice."""


def open_view(as_json: bool) -> PullView:
    """The view that fits the output."""
    if as_json:
        return JsonEvents()
    return TerminalBars() if rewrites_lines(sys.stderr) else PlainLines()


def describe(event: PullEvent) -> str | None:
    """One line for an event that is not progress."""
    if isinstance(event, PullPlanned):
        size = "" if event.size_bytes is None else f", {format_bytes(event.size_bytes)}"
        licence = "" if event.licence is None else f", licence {printable(event.licence, 80)}"
        files = "" if len(event.files) == 1 else f", {len(event.files)} files"
        return f"pulling {event.name} from {printable(event.source, 200)}{size}{files}{licence}"
    if isinstance(event, FitEstimated):
        return _describe_fit(event)
    if isinstance(event, Retrying):
        wait = format_seconds(max(1.0, event.wait_seconds))
        return f"{printable(event.file, 80)}: {event.reason}; trying again in {wait}"
    if isinstance(event, Phase):
        return f"{printable(event.file, 80)}: {event.text}"
    if isinstance(event, Note):
        return f"note: {event.text}"
    if isinstance(event, PullFinished):
        fetched = f", {format_bytes(event.fetched_bytes)} fetched" if event.fetched_bytes else ", nothing to fetch"
        return f"pulled {event.name}: {format_bytes(event.size_bytes)}{fetched}"
    return None


def _describe_fit(event: FitEstimated) -> str:
    if event.tokens_per_second is None and not event.memory_bytes:
        return f"{event.name} cannot be run here: {event.problem}"
    needed = (
        f"{format_bytes(event.weight_bytes)} of weights and {format_bytes(event.kv_bytes)} for {event.context} tokens"
    )
    gpu = f" and {format_bytes(event.gpu_bytes)} of GPU memory" if event.gpu_bytes else ""
    free = f"{format_bytes(event.memory_bytes)}{gpu} free"
    if not event.fits:
        return f"warning: does not fit: {needed}, {free}; {event.problem}"
    return f"fits: {needed}, {free}; about {event.tokens_per_second:.0f} tokens a second"


class JsonEvents:
    """One JSON object a line on standard output."""

    def __init__(self) -> None:
        self._last = 0.0

    def __call__(self, event: PullEvent) -> None:
        """Print it; of progress, two lines a second and the last one."""
        now = time.monotonic()
        whole = isinstance(event, FileProgress) and event.done_bytes == event.total_bytes
        if isinstance(event, FileProgress) and not whole and now - self._last < JSON_INTERVAL:
            return
        if isinstance(event, FileProgress):
            self._last = now
        name = re.sub("(?<!^)(?=[A-Z])", "_", type(event).__name__).lower()
        click.echo(json.dumps({"event": name, **asdict(event)}))
        sys.stdout.flush()

    def close(self) -> None:
        """Nothing to leave."""


class PlainLines:
    """Lines on standard error, progress every few seconds."""

    def __init__(self) -> None:
        self._started = self._last = time.monotonic()
        self._first_bytes: int | None = None

    def __call__(self, event: PullEvent) -> None:
        """Print it; of progress, a line every few seconds."""
        text = describe(event)
        if isinstance(event, FileProgress):
            now = time.monotonic()
            if self._first_bytes is None:
                self._first_bytes, self._started = event.done_bytes, now
            if now - self._last < LINE_INTERVAL:
                return
            self._last = now
            text = self._progress(event, now)
        if text is not None:
            click.echo(text, err=True)

    def _progress(self, event: FileProgress, now: float) -> str:
        rate = (event.done_bytes - (self._first_bytes or 0)) / max(now - self._started, 1e-6)
        text = f"{printable(event.file, 80)}: {format_bytes(event.done_bytes)}"
        if event.total_bytes:
            text += f" of {format_bytes(event.total_bytes)} ({event.done_bytes / event.total_bytes:.0%})"
        if rate > 0:
            text += f", {format_bytes(rate)}/s"
            if event.total_bytes:
                text += f", {format_seconds((event.total_bytes - event.done_bytes) / rate)} left"
        return text

    def close(self) -> None:
        """Nothing to leave."""


class TerminalBars:
    """A bar a file with bytes, speed and time left; other events as lines above it."""

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._tasks: dict[str, int] = {}

    def __call__(self, event: PullEvent) -> None:
        """Move a bar, or print a line above the bars."""
        if isinstance(event, FileProgress):
            self._show(event)
            return
        text = describe(event)
        if text is None:
            return
        if self._progress is not None:
            self._progress.console.print(text, markup=False, highlight=False)
        else:
            click.echo(text, err=True)

    def _show(self, event: FileProgress) -> None:
        from rich.progress import TaskID

        if self._progress is None:
            self._progress = _new_bars()
            self._progress.start()
        task = self._tasks.get(event.file)
        if task is None:
            label = printable(event.file, 40).replace("[", r"\[")
            task = self._progress.add_task(label, total=event.total_bytes, completed=event.resumed_bytes)
            self._tasks[event.file] = task
        self._progress.update(TaskID(task), completed=event.done_bytes, total=event.total_bytes)

    def close(self) -> None:
        """Stop drawing; the bars stay as they are."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def _new_bars() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )

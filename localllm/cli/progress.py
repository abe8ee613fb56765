"""What a person sees while a model is fetched and loaded: one line on stderr, only when it takes a while."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from .terminal import rewrites_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from localllm.kernels.executor import LoadProgress

PATIENCE = 0.5  # seconds before anything is shown


class LoadLine:
    """Shows the phase of a load; on a terminal it rewrites one line, elsewhere it prints a line a phase."""

    def __init__(self, verbose: bool) -> None:
        self._started = time.monotonic()
        self._terminal = rewrites_lines(sys.stderr)
        self._verbose = verbose
        self._phase = ""
        self._shown = False

    def __call__(self, event: LoadProgress) -> None:
        """Show an event, once half a second has gone by."""
        new = event.phase != self._phase
        self._phase = event.phase
        if time.monotonic() - self._started < PATIENCE and not self._verbose:
            return
        percent = "" if event.fraction is None else f" {event.fraction:4.0%}"
        if self._terminal:
            click.echo(f"\r\x1b[K{event.phase}{percent}", nl=False, err=True)
            self._shown = True
        elif new or not self._shown:
            click.echo(event.phase, err=True)
            self._shown = True

    def done(self) -> None:
        """Remove the line."""
        if self._shown and self._terminal:
            click.echo("\r\x1b[K", nl=False, err=True)
            self._shown = False


@contextmanager
def load_progress(verbose: bool = False) -> Iterator[LoadLine]:
    """A progress callback for loading; the line is removed at the end, also after an error."""
    line = LoadLine(verbose)
    try:
        yield line
    finally:
        line.done()

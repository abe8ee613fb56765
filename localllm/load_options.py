"""What can be wrong with the options of a model before any file is opened."""

from __future__ import annotations

from typing import get_args

from localllm.errors import ConfigurationError
from localllm.kernels.executor import MOST_THREADS, Mode


def check_load_options(threads: int | None, vram: int | None, mode: Mode | None) -> None:
    """ConfigurationError for a number out of range (`vram` in bytes), or a mode that there is not."""
    if threads is not None and not 1 <= threads <= MOST_THREADS:
        raise ConfigurationError(f"threads must be 1 to {MOST_THREADS}, not {threads}")
    if vram is not None and vram < 0:
        raise ConfigurationError(f"vram must be a number of bytes, not {vram}")
    if mode is not None and mode not in get_args(Mode):
        raise ConfigurationError(f"there is no mode {mode!r}", hint=f"use one of: {', '.join(get_args(Mode))}")

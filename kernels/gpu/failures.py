"""What a card, its driver or Triton refuse, said as what it is, where it happened and what helps."""

from __future__ import annotations

import contextlib
from subprocess import SubprocessError
from typing import TYPE_CHECKING

import torch
from triton.runtime import driver
from triton.runtime.errors import OutOfResources

from localllm.kernels.errors import ExecutionError, OutOfMemoryError, UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Iterator

_REFUSALS = (RuntimeError, AssertionError, ImportError, OSError, SubprocessError)


@contextlib.contextmanager
def opening() -> Iterator[None]:
    """UnsupportedModelError for a card that PyTorch sees and cannot open."""
    try:
        yield
    except RuntimeError as error:
        raise UnsupportedModelError(
            f"the graphics card cannot be opened: {_first_line(error)}",
            hint="`nvidia-smi` lists the programs that use it: they may hold all its memory. Or run with --device cpu.",
        ) from error


def check_triton() -> None:
    """UnsupportedModelError when Triton cannot launch kernels, for which it compiles a small C file the first time."""
    try:
        driver.active.get_current_device()
    except _REFUSALS as error:
        raise UnsupportedModelError(
            f"Triton cannot start on this card: {_first_line(error)}",
            hint="It needs a C compiler and Python's headers (packages gcc and python3-dev). Or run with --device cpu.",
        ) from error


@contextlib.contextmanager
def launching(card: str) -> Iterator[None]:
    """OutOfMemoryError or ExecutionError for what the first run of a kernel, or its capture, lacks on `card`."""
    try:
        yield
    except OutOfResources as error:
        raise ExecutionError(
            f"a kernel needs more of {card} than it has ({_first_line(error)})", hint="Run with --device cpu."
        ) from error
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and "out of memory" not in str(error):
            raise
        raise OutOfMemoryError(
            f"{card} has too little free memory for the kernels of this step",
            hint="Close other programs that use the GPU, or give a lower --vram.",
        ) from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]

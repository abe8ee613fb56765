"""What the start of a process on a card would wait for, one thing after the other, done side by side instead."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def quick_imports() -> Iterator[None]:
    """For the block that imports PyTorch: the driver opens its context meanwhile, and nothing looks for garbage.

    An import leaves 160,000 objects and no garbage, but collections take an eighth of its time.
    """
    if "torch" not in sys.modules:
        threading.Thread(target=_open_context, name="cuda-context").start()
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _open_context() -> None:
    """Make the first card's primary context, which PyTorch will find; whoever has no card hears that from PyTorch."""
    os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")  # as PyTorch does before its first call
    with contextlib.suppress(OSError):
        driver = ctypes.CDLL("libcuda.so.1")
        if driver.cuInit(0) == 0:
            driver.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), 0)


def hash_compiler() -> threading.Thread | None:
    """Let a thread hash Triton itself, half a gigabyte: its cache of kernels asks for that before the first one.

    None: this version of Triton has no such key.
    """
    try:
        from triton.runtime.cache import triton_key
    except ImportError:
        return None
    thread = threading.Thread(target=triton_key, name="triton-key")
    thread.start()
    return thread

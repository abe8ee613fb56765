"""Memory that this process holds and does not need goes back to the system (glibc keeps most of it otherwise).

Requests are prepared on several threads. For each of them glibc opens an arena of its own and hardly ever gives back
what was freed in the middle of one: after a burst of long prompts that is three times what is in use.
"""

from __future__ import annotations

import ctypes
import gc
import sys

TRIM_THRESHOLD, MMAP_THRESHOLD, ARENA_MAX = -1, -3, -8  # M_... of malloc.h
LARGE = 1 << 20  # bytes


def use_one_arena() -> None:
    """Small pieces of all threads come from one arena from now on, large ones from the system, to which they return.

    Python's lock keeps threads from disturbing each other there. Left alone, glibc takes large pieces from the arena
    too, once one was freed, and small ones that stay come to lie in the holes.
    """
    _call_libc("mallopt", ARENA_MAX, 1)
    _call_libc("mallopt", MMAP_THRESHOLD, LARGE)
    _call_libc("mallopt", TRIM_THRESHOLD, 4 * LARGE)


def give_back() -> None:
    """What was freed goes back to the system now, unreachable cycles too; takes some 50 ms."""
    gc.collect()
    trim()


def trim() -> None:
    """What was freed goes back to the system; takes a few ms, in which other Python threads run."""
    _call_libc("malloc_trim", 0)


def _call_libc(name: str, *arguments: int) -> None:
    """Nothing happens where the C library is another one."""
    if sys.platform == "linux":
        function = getattr(ctypes.CDLL(None), name, None)
        if function is not None:
            function(*arguments)

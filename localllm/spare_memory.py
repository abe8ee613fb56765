"""Memory that this process holds and does not need goes back to the system (glibc keeps most of it otherwise).

Requests are prepared on several threads. For each of them glibc opens an arena of its own and hardly ever gives back
what was freed in the middle of one: after a burst of long prompts that is three times what is in use.
"""

from __future__ import annotations

import ctypes
import gc
import sys

ARENA_MAX = -8  # M_ARENA_MAX of malloc.h


def use_one_arena() -> None:
    """All threads from now on allocate from one arena; Python's lock keeps them from disturbing each other there."""
    _call_libc("mallopt", ARENA_MAX, 1)


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

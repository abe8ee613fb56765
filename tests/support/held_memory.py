"""How much memory the C library has handed out, where it counts that."""

from __future__ import annotations

import ctypes
import platform

import pytest

from localllm.spare_memory import give_back

_FIELDS = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")


class _Mallinfo2(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_size_t) for name in _FIELDS)


def bytes_in_use() -> int:
    """What was handed out and not given back, of all threads; Python's own small objects are not in it."""
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("another C library does not count its memory")
    try:
        mallinfo2 = ctypes.CDLL(None).mallinfo2
    except AttributeError:
        pytest.skip("glibc counts large memory from version 2.33 on")
    mallinfo2.restype = _Mallinfo2
    give_back()
    found = mallinfo2()
    return int(found.uordblks + found.hblkhd)

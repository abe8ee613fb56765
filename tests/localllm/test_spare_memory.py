"""What was freed goes back to the system."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from localllm.spare_memory import give_back, use_one_arena

# Many small pieces, of which some in every page of the last ones stay: glibc alone would keep it all.
_FRAGMENTS = """
import threading
from pathlib import Path
from localllm.spare_memory import give_back, use_one_arena

def resident():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) // 1024

def fill():
    pieces = [bytes(2000) for _ in range(40_000)]
    kept.append(pieces[::200])

use_one_arena()
kept = []
before = resident()
threads = [threading.Thread(target=fill) for _ in range(2)]
for thread in threads:
    thread.start()
    thread.join()
held = resident() - before
give_back()
print(held, resident() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library keeps house in another way")
def test_freed_memory_goes_back() -> None:
    run = subprocess.run([sys.executable, "-c", _FRAGMENTS], capture_output=True, text=True, check=True)
    held, left = map(int, run.stdout.split())
    assert held > 40  # MiB
    assert left < 20


_LARGE_PIECES = """
from pathlib import Path
from localllm.spare_memory import use_one_arena

def resident():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) // 1024

use_one_arena()
before, kept = resident(), []
for _ in range(8):
    large = bytearray(24 << 20)
    large[::4096] = bytes(len(large[::4096]))
    kept.append(bytes(900))  # lies behind it, if it lies in the arena
    del large
print(resident() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library keeps house in another way")
def test_large_pieces_go_back_at_once() -> None:
    run = subprocess.run([sys.executable, "-c", _LARGE_PIECES], capture_output=True, text=True, check=True)
    assert int(run.stdout) < 10  # MiB


def test_nothing_breaks_anywhere() -> None:
    use_one_arena()
    give_back()

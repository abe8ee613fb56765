"""Blocks of memory: aligned, zero at first, and zero again once they were forgotten."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from localllm.kernels.cpu.memory import ALIGNMENT, Block


def resident() -> int:
    """Bytes of this process that are in memory and in no file."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("RssAnon"))


@pytest.mark.parametrize("size", [1, 100, 4096, 2**21, 3 * 2**21 + 5])
def test_a_block_is_aligned_and_zero(size: int) -> None:
    block = Block(size, "test")
    assert len(block.bytes) == size
    assert block.address % ALIGNMENT == 0
    assert not block.bytes.any()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems keep the memory")
def test_a_forgotten_block_takes_no_memory_and_can_be_used_again() -> None:
    size = 64 * 2**20
    block = Block(size, "test")
    before = resident()
    for _ in range(2):
        block.bytes[:] = 7
        assert resident() > before + size // 2
        block.forget()
        assert resident() < before + size // 2
        assert not block.bytes.any()

"""A tokenizer that is gone holds nothing, in no thread that used it."""

from __future__ import annotations

import ctypes
import gc
import platform
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from localllm.spare_memory import give_back
from localllm.tokenizer import Tokenizer

THREADS, TOKENIZERS = 2, 20
TEXT = " ".join(f"word{number}" for number in range(1000))
_FIELDS = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")


class _Mallinfo2(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_size_t) for name in _FIELDS)


def bytes_in_use() -> int:
    """What the C library has handed out and not got back."""
    gc.collect()
    give_back()
    mallinfo2 = ctypes.CDLL(None).mallinfo2  # glibc 2.33
    mallinfo2.restype = _Mallinfo2
    return int(mallinfo2().uordblks)


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc" or not hasattr(ctypes.CDLL(None), "mallinfo2"),
    reason="only glibc counts the memory that it has handed out",
)
def test_nothing_stays_of_tokenizers_that_are_gone(byte_level: Callable[..., Tokenizer]) -> None:
    with ThreadPoolExecutor(THREADS) as pool:

        def use_one() -> None:
            tokenizer = byte_level(("w o", "wo r", "wor d"))
            lengths = list(pool.map(lambda _: len(tokenizer.encode(TEXT)), range(4 * THREADS)))
            assert len(set(lengths)) == 1

        use_one()
        before = bytes_in_use()
        for _ in range(TOKENIZERS):
            use_one()
        # what a thread remembers of 1,000 words is some 200 KB
        assert bytes_in_use() - before < 20_000 * TOKENIZERS

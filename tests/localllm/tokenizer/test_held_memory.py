"""A tokenizer that is gone holds nothing, in no thread that used it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from held_memory import bytes_in_use

from localllm.tokenizer import Tokenizer

THREADS, TOKENIZERS = 2, 20
TEXT = " ".join(f"word{number}" for number in range(1000))


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

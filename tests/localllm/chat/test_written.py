"""What is kept of the answer that may go on."""

from __future__ import annotations

import tracemalloc

from localllm.chat.written import WrittenAnswer
from localllm.events import TextDelta

TOKENS = 50_000


def test_a_long_answer_takes_few_bytes_a_token() -> None:
    written = WrittenAnswer([{"role": "user", "content": "Count."}])
    tracemalloc.start()
    try:
        for token in range(1000, 1000 + TOKENS):
            written.add(TextDelta("one", (token,)))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 8 * TOKENS

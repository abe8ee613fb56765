"""A model that was closed holds nothing."""

from __future__ import annotations

import gc
from pathlib import Path

from held_memory import bytes_in_use

from localllm.llm import LLM

LOADS = 20


def test_nothing_stays_of_models_that_are_closed(shared_fixtures: Path) -> None:
    path = shared_fixtures / "golden" / "arch" / "llama_gqa_tied.gguf"

    def use_one() -> None:
        with LLM(path, device="cpu", threads=1, context=128) as llm:
            assert llm.generate("hello hello hello", max_tokens=8, seed=1, ignore_eos=True).ids

    def held() -> tuple[int, int]:
        in_use = bytes_in_use()
        return in_use, len(gc.get_objects())

    for _ in range(3):
        use_one()
    before_bytes, before_objects = held()
    for _ in range(LOADS):
        use_one()
    after_bytes, after_objects = held()
    # bounded caches of numpy and Python may still fill
    assert after_bytes - before_bytes < 5_000 * LOADS
    assert after_objects - before_objects < 5 * LOADS

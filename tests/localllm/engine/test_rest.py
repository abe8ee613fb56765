"""An engine without work drops what it kept and gives the memory back, once, and goes on as before."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from integer_executor import IntegerExecutor

from localllm.engine import Engine
from scripts import complete

MakeEngine = Callable[..., Engine]
PROMPT = [5] * 40


class Resting(IntegerExecutor):
    """Says when its pages were forgotten."""

    def __init__(self) -> None:
        super().__init__()
        self.rested = threading.Semaphore(0)

    def forget_pages(self) -> None:
        super().forget_pages()
        self.rested.release()


def test_an_idle_engine_forgets_once_and_answers_the_same(make_engine: MakeEngine) -> None:
    executor = Resting()
    engine = make_engine(executor, keep_cache=0.05)
    texts = []
    for _ in range(2):
        answer = complete(engine, PROMPT, max_tokens=8, temperature=1.0, seed=2, ignore_eos=True)
        assert answer.usage.cached_tokens == 0
        texts.append(answer.ids)
        assert executor.rested.acquire(timeout=60)
        assert engine.usage().pages.cached == 0
    time.sleep(0.2)
    assert executor.forgotten == 2  # without work there is nothing new to forget
    assert texts[0] == texts[1]


def test_without_a_limit_prefixes_stay(make_engine: MakeEngine) -> None:
    executor = Resting()
    engine = make_engine(executor)
    complete(engine, PROMPT, max_tokens=2, ignore_eos=True)
    assert not executor.rested.acquire(timeout=0.2)
    assert complete(engine, PROMPT, max_tokens=2, ignore_eos=True).usage.cached_tokens == 39


def test_whoever_has_the_executor_is_not_disturbed(make_engine: MakeEngine) -> None:
    executor = Resting()
    engine = make_engine(executor, keep_cache=0.05)
    with engine.exclusive():
        assert not executor.rested.acquire(timeout=0.2)
    complete(engine, PROMPT, max_tokens=2, ignore_eos=True)
    assert executor.rested.acquire(timeout=60)

"""Engines over the integer executor; each is closed when its test ends, and must then hold no page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from byte_tokenizer import byte_tokenizer
from integer_executor import IntegerExecutor

from localllm.engine import Engine, EngineOptions

MakeEngine = Callable[..., Engine]


@pytest.fixture
def make_engine() -> Iterator[MakeEngine]:
    engines: list[Engine] = []

    def make(executor: IntegerExecutor | None = None, **options: Any) -> Engine:
        engine = Engine(executor or IntegerExecutor(), byte_tokenizer(), EngineOptions(**{"context": 256, **options}))
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        engine.close()
        usage = engine.usage()
        assert (usage.running, usage.waiting) == (0, 0)
        if engine.failure is None:
            assert usage.pages.held == 0

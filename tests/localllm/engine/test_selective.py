"""Answers under the lossy KV policies: one text whatever runs beside it, and errors where a policy cannot work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from byte_tokenizer import byte_tokenizer

from localllm.cache import PoolSizes, parse_kv_policy
from localllm.completion import collect
from localllm.engine import Engine, EngineOptions, Request
from localllm.errors import ConfigurationError
from localllm.gguf_io import open_gguf
from localllm.kernels.executor import Device, ExecutorOptions
from localllm.kernels.registry import open_executor
from localllm.models import load_spec
from localllm.sampling import SamplingParameters

PROMPTS: list[list[int]] = np.random.default_rng(2).integers(0, 90, (3, 70)).tolist()
SAMPLED = SamplingParameters(max_tokens=12, temperature=0.9, seed=5, ignore_eos=True)
Open = Callable[..., Engine]


@pytest.fixture
def open_engine(data_folder: Path) -> Iterator[Open]:
    opened = []
    with open_gguf(data_folder / "models" / "llama_gqa_tied_f16.gguf") as file:
        spec = load_spec(file)

        def make(
            policy: str | None,
            device: Device = "reference",
            parallel: int = 1,
            max_rows: int = 64,
            pool: PoolSizes | None = None,
        ) -> Engine:
            selective = None if policy is None else parse_kv_policy(policy)
            executor = open_executor(spec, device, ExecutorOptions(1, max_rows, selective=selective))
            engine = Engine(
                executor, byte_tokenizer(), EngineOptions(128, parallel=parallel, selective=selective, pool=pool)
            )
            opened.append((engine, executor))
            return engine

        yield make
        for engine, executor in opened:
            engine.close()
            executor.close()


def _answer(engine: Engine, prompt: list[int]) -> tuple[int, ...]:
    return collect(engine.submit(Request(prompt, SAMPLED))).ids


@pytest.mark.parametrize("policy", ["h2o:32", "sparq:4:24"])
def test_one_text_in_any_batch(policy: str, open_engine: Open) -> None:
    alone = open_engine(policy)
    expected = [_answer(alone, prompt) for prompt in PROMPTS]
    assert [_answer(alone, prompt) for prompt in PROMPTS] == expected
    together = open_engine(policy, parallel=3, max_rows=20)
    generations = [together.submit(Request(prompt, SAMPLED)) for prompt in PROMPTS]
    assert [collect(generation).ids for generation in generations] == expected
    assert [_answer(open_engine(None), prompt) for prompt in PROMPTS] != expected


def test_one_text_when_pages_run_out(open_engine: Open) -> None:
    expected = [_answer(open_engine("h2o:32", "cpu"), prompt) for prompt in PROMPTS]
    engine = open_engine("h2o:32", "cpu", parallel=3, pool=PoolSizes((5,)))
    generations = [engine.submit(Request(prompt, SAMPLED)) for prompt in PROMPTS]
    assert [collect(generation).ids for generation in generations] == expected
    assert engine.usage().pages.held == engine.usage().pages.cached == 0


def test_several_answers_to_a_prompt_share_no_page(open_engine: Open) -> None:
    engine = open_engine("h2o:32", parallel=2)
    generation = engine.submit(Request(PROMPTS[0], SAMPLED, n=2))
    first = [event for index, event in generation.merged() if index == 0]
    assert collect(first).ids == _answer(open_engine("h2o:32"), PROMPTS[0])


@pytest.mark.parametrize("policy", ["h2o:32", "sparq:4:24"])
def test_no_sliding_window(policy: str, open_engine: Open) -> None:
    executor = open_engine(policy)._executor
    options = EngineOptions(128, window=64, selective=parse_kv_policy(policy))
    with pytest.raises(ConfigurationError, match="selective"):
        Engine(executor, byte_tokenizer(), options)

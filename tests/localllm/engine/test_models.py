"""The engine over real executors: one text whatever is cut, shared or batched, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from byte_tokenizer import byte_tokenizer

from localllm.completion import Completion, collect
from localllm.engine import Engine, EngineOptions, Request
from localllm.errors import UnsupportedModelError
from localllm.gguf_io import open_gguf
from localllm.kernels.executor import Device, ExecutorOptions
from localllm.kernels.registry import open_executor
from localllm.kernels.spec import ModelSpec
from localllm.models import load_spec
from localllm.sampling import SamplingParameters

Open = Callable[..., Engine]
SAMPLED = SamplingParameters(max_tokens=24, temperature=0.9, seed=5, logprobs=2, ignore_eos=True)


@pytest.fixture
def open_engine() -> Iterator[Open]:
    opened = []

    def make(
        spec: ModelSpec,
        device: Device,
        *,
        max_rows: int = 64,
        context: int = 256,
        window: int | None = None,
        parallel: int = 1,
    ) -> Engine:
        executor = open_executor(spec, device, ExecutorOptions(threads=1, max_rows=max_rows))
        engine = Engine(executor, byte_tokenizer(), EngineOptions(256, window=window, parallel=parallel))
        opened.append((engine, executor))
        return engine

    yield make
    for engine, executor in opened:
        engine.close()
        executor.close()


@pytest.fixture
def gemma(data_folder: Path) -> Iterator[ModelSpec]:
    with open_gguf(data_folder / "models" / "gemma3.gguf") as file:
        yield load_spec(file)


@pytest.fixture
def llama(data_folder: Path) -> Iterator[ModelSpec]:
    with open_gguf(data_folder / "models" / "llama_gqa_tied_f16.gguf") as file:
        yield load_spec(file)


def prompts(spec: ModelSpec, count: int, length: int) -> list[list[int]]:
    ids: list[list[int]] = (
        np.random.default_rng(1).integers(0, min(256, spec.vocabulary_size), (count, length)).tolist()
    )
    return ids


def answer(engine: Engine, ids: list[int]) -> Completion:
    return collect(engine.submit(Request(ids, SAMPLED)))


def essence(completion: Completion) -> object:
    return completion.ids, completion.logprobs


def test_one_text_on_the_cpu_cold_warm_and_in_a_batch(open_engine: Open, gemma: ModelSpec) -> None:
    batch = [*prompts(gemma, 3, 70), *prompts(gemma, 1, 37)]
    alone = [essence(answer(open_engine(gemma, "cpu"), ids)) for ids in batch]
    engine = open_engine(gemma, "cpu", parallel=4, max_rows=32)
    for _ in range(2):
        generations = [engine.submit(Request(ids, SAMPLED)) for ids in batch]
        assert [essence(collect(generation)) for generation in generations] == alone


def test_the_second_turn_computes_only_what_is_new(open_engine: Open, llama: ModelSpec) -> None:
    engine = open_engine(llama, "cpu")
    (ids,) = prompts(llama, 1, 50)
    first = answer(engine, ids)
    turn = [*ids, *first.ids, 7, 8, 9]
    rows = engine.usage().rows
    second = answer(engine, turn)
    assert second.usage.cached_tokens == len(turn) - 4
    assert engine.usage().rows - rows == 4 + 23
    assert essence(second) == essence(answer(open_engine(llama, "cpu"), turn))


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_a_window_of_the_layers_as_wide_as_the_sliding_one_hides_nothing(
    open_engine: Open, llama: ModelSpec, device: Device
) -> None:
    narrow = replace(
        llama,
        layers=tuple(replace(layer, attention=replace(layer.attention, window=64)) for layer in llama.layers),
    )
    (ids,) = prompts(llama, 1, 200)
    plain = open_engine(llama, device, window=64).score(ids)
    np.testing.assert_array_equal(open_engine(narrow, device, window=64).score(ids), plain)
    assert np.abs(open_engine(llama, device).score(ids)[100:] - plain[100:]).max() > 1e-3


def test_a_sliding_window_on_the_cpu_is_that_of_the_reference(open_engine: Open, llama: ModelSpec) -> None:
    (ids,) = prompts(llama, 1, 200)
    values = [open_engine(llama, device, window=64).score(ids) for device in ("reference", "cpu")]
    np.testing.assert_allclose(values[0], values[1], atol=0.01)


@pytest.mark.parametrize("name", ["gpt_oss", "minicpm3"])
def test_learned_sinks_and_latent_attention_in_a_sliding_window(
    open_engine: Open, data_folder: Path, name: str
) -> None:
    """Learned sinks stay beside those of the window; the keys of latent attention are rotated in one part only."""
    with open_gguf(data_folder / "models" / f"{name}.gguf") as file:
        spec = load_spec(file)
        (ids,) = prompts(spec, 1, 200)
        plain, slid = (open_engine(spec, "reference", window=window).score(ids) for window in (None, 64))
        ours = open_engine(spec, "cpu", window=64).score(ids)
    if name == "minicpm3":
        with pytest.raises(UnsupportedModelError, match=r"MLA.*q8"):
            EngineOptions(256, kv_type="q8").policy(spec)
    behind = slice(64, None)  # 8-bit activations choose other experts now and then, so the middle of all is looked at
    effect = np.median(np.abs(slid - plain)[behind])
    assert np.median(np.abs(slid - ours)[behind]) < 0.15 * effect


def test_a_sliding_window_over_windows_is_the_same_token_by_token(open_engine: Open, gemma: ModelSpec) -> None:
    (ids,) = prompts(gemma, 1, 200)
    by_token = open_engine(gemma, "cpu", window=64, max_rows=1).score(ids)
    np.testing.assert_array_equal(by_token, open_engine(gemma, "cpu", window=64).score(ids))

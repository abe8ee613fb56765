"""The Python API over a tiny model: one engine underneath, clear errors for wrong use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localllm.errors import (
    ConfigurationError,
    ContextLengthError,
    GGUFError,
    LocalLLMError,
    RequestError,
    SessionError,
    UnsupportedModelError,
)
from localllm.events import Finished, PromptProgress, TextDelta
from localllm.gguf_io import write_gguf
from localllm.kernels.executor import LoadProgress
from localllm.llm import LLM


@pytest.fixture
def model(shared_fixtures: Path) -> Path:
    return shared_fixtures / "golden" / "arch" / "llama_gqa_tied.gguf"


@pytest.fixture
def llm(model: Path) -> Iterator[LLM]:
    with LLM(model, device="reference", context=128) as opened:
        yield opened


def test_text_events_and_completion_agree(llm: LLM) -> None:
    events = list(llm.stream("hello", max_tokens=12, ignore_eos=True))
    completion = llm.generate("hello", max_tokens=12, ignore_eos=True)
    assert isinstance(events[0], PromptProgress)
    assert isinstance(events[-1], Finished)
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == completion.text
    assert completion.finish_reason == "length"
    assert len(completion.ids) == 12
    assert llm.tokenizer.decode(completion.ids) == completion.text
    assert llm.generate(llm.tokenizer.encode_prompt("hello"), max_tokens=12, ignore_eos=True).text == completion.text


def test_logits_scores_and_perplexity_agree(llm: LLM, model: Path) -> None:
    golden = np.load(model.with_suffix(".npz"))
    ids = golden["tokens"].tolist()
    logits = llm.logits(ids)
    np.testing.assert_allclose(logits, golden["logits_exact"], atol=0.02)  # f16 keys and values
    values = logits.astype(np.float64)
    values -= np.log(np.exp(values).sum(axis=1, keepdims=True))
    expected = -values[np.arange(39), ids[1:]]
    np.testing.assert_allclose(llm.stream_nll(ids), expected, atol=1e-4)
    text = "abcdefghijklmnopqrstuvwxyz" * 2
    count = len(llm.tokenizer.encode(text))
    assert llm.perplexity(text, context=count // 2) > 1
    with pytest.raises(RequestError, match="fewer than one chunk"):
        llm.perplexity("short", context=100)


def test_a_closed_iterator_stops_its_request(llm: LLM) -> None:
    events = llm.stream("hello", max_tokens=100, ignore_eos=True)
    next(events)
    events.close()
    assert llm.generate("hello", max_tokens=2, ignore_eos=True).finish_reason == "length"


def test_wrong_use_is_explained(llm: LLM) -> None:
    with pytest.raises(ContextLengthError, match=r"200 tokens.*128 tokens"):
        llm.generate([5] * 200)
    with pytest.raises(RequestError, match="token 288 is not in the vocabulary"):
        llm.generate([288])
    with pytest.raises(RequestError, match="no sampling parameter 'temprature'"):
        llm.generate("x", temprature=1)
    with pytest.raises(RequestError, match="empty"):
        llm.generate([])
    for messages in ("hello", ["hello"], {"role": "user", "content": "hello"}):
        with pytest.raises(RequestError, match="messages"):
            llm.chat(messages)  # type: ignore[arg-type]
    llm.close()
    llm.close()
    for use in (llm.describe, lambda: llm.generate("x"), lambda: llm.logits([1]), lambda: llm.stream_nll([1, 2])):
        with pytest.raises(RequestError, match="closed"):
            use()


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"window": 4096}, ConfigurationError, "a window of 4096 tokens is more than the 2048"),
        ({"context": 4096, "context_policy": "window"}, ConfigurationError, "a sliding context of 4096 tokens"),
        ({"window": 40, "sinks": 40}, ConfigurationError, "window must be at least"),
        ({"context": 40, "context_policy": "window"}, ConfigurationError, "a context of 40 tokens is too small"),
        ({"kv": "q4", "kv_policy": "h2o:64"}, UnsupportedModelError, "float pages, not q4"),
        ({"context": 0}, ConfigurationError, "context must be 1 or more"),
        ({"sinks": -1}, ConfigurationError, "sinks must be 0 or more"),
        ({"context_policy": "forget"}, ConfigurationError, "there is no context policy 'forget'"),
        ({"mode": "fast"}, ConfigurationError, "there is no mode 'fast'"),
        ({"threads": 0}, ConfigurationError, "threads must be 1 to 256, not 0"),
        ({"threads": 257}, ConfigurationError, "threads must be 1 to 256, not 257"),
        ({"vram": -1}, ConfigurationError, "vram must be a number of bytes"),
        ({"chat_template": "missing.jinja"}, LocalLLMError, "missing.jinja"),
    ],
)
def test_options_that_cannot_work_are_refused_before_the_weights_are_loaded(
    model: Path, options: dict[str, Any], error: type[Exception], said: str
) -> None:
    heard: list[LoadProgress] = []
    with pytest.raises(error, match=said):
        LLM(model, device="cpu", progress=heard.append, **options)
    assert heard == []


def test_a_file_without_a_tokenizer_is_refused_before_its_weights_are_loaded(data_folder: Path) -> None:
    heard: list[LoadProgress] = []
    with pytest.raises(GGUFError, match=r"tokenizer\.ggml\.model"):
        LLM(data_folder / "models" / "gemma2.gguf", device="cpu", progress=heard.append)
    assert heard == []


def test_an_unknown_architecture_is_named_before_its_tokenizer(tmp_path: Path) -> None:
    path = tmp_path / "novel.gguf"
    write_gguf(path, {"general.architecture": "novel", "tokenizer.ggml.model": "novel"}, {})
    with pytest.raises(UnsupportedModelError, match="the architecture 'novel' is not supported"):
        LLM(path)


def test_a_window_lets_a_text_go_on(model: Path) -> None:
    with LLM(model, device="reference", context=128, window=64) as llm:
        completion = llm.generate("hello", max_tokens=150, ignore_eos=True)
    assert len(completion.ids) == 150
    assert completion.usage.evicted_tokens > 0


def test_a_chat_saved_by_one_process_goes_on_in_another(model: Path, tmp_path: Path) -> None:
    with LLM(model, device="reference", context=128) as llm:
        first = llm.generate("hello there", max_tokens=12, ignore_eos=True)
        ids = [*llm.tokenizer.encode_prompt("hello there"), *first.ids]
        assert llm.save_session(tmp_path / "chat", ids) == len(ids) - 1
        expected = llm.generate([*ids, 5], max_tokens=12, ignore_eos=True)
    with LLM(model, device="reference", context=128) as llm:
        assert llm.restore_session(tmp_path / "chat") == ids[:-1]
        again = llm.generate([*ids, 5], max_tokens=12, ignore_eos=True)
    assert again.ids == expected.ids
    assert again.usage.cached_tokens == len(ids) - 1
    with (
        LLM(model, device="reference", context=128, kv="f32") as llm,
        pytest.raises(SessionError, match="KV cache of f16"),
    ):
        llm.restore_session(tmp_path / "chat")

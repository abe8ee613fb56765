"""A chat with a model in this process: the real SmolLM2 where it is here, and how a begun answer is given back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from localllm.chat.local import LocalBackend, _prepared
from localllm.errors import ModelNotFoundError, RequestError, SessionError
from localllm.events import Event, Finished, TextDelta, Usage
from localllm.kernels.executor import LoadProgress

PAGE = 16  # tokens


def test_a_begun_answer_is_given_back_with_its_thinking() -> None:
    def last(content: str, reasoning: str, opening: str) -> str:
        messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": content, "reasoning": reasoning}]
        prepared = _prepared(messages, opening)
        assert all("reasoning" not in message for message in prepared)
        return str(prepared[-1]["content"])

    assert last("half", "", "") == "half"
    assert last("half", "hm", "") == "<think>\nhm</think>\n\nhalf"
    assert last("", "hm", "") == "<think>\nhm"
    assert last("", "hm", "<think>") == "hm"
    assert last("half", "hm", "<reasoning>") == "hm</reasoning>\n\nhalf"


def test_what_is_not_loaded_or_not_here_is_said() -> None:
    backend = LocalBackend("no-such-model:1b", {})
    with pytest.raises(RequestError, match="is not loaded"):
        backend.stream([{"role": "user", "content": "x"}], {})
    with pytest.raises(ModelNotFoundError):
        backend.load(lambda _: None)
    backend.cancel()
    backend.close()


@pytest.fixture(scope="module")
def backend(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBackend]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCALLLM_HOME", str(tmp_path_factory.mktemp("home")))
        backend = LocalBackend(str(smollm2_path), {"device": "cpu", "context": 512})
        phases: list[LoadProgress] = []
        backend.load(phases.append)
        assert phases
    yield backend
    backend.close()
    backend.close()


@pytest.mark.real_model
def test_a_real_conversation(backend: LocalBackend) -> None:
    question = [{"role": "user", "content": "Count from one to ten."}]
    events = list(backend.stream(question, {"temperature": 0.0, "max_tokens": 16}))
    end = events[-1]
    assert isinstance(end, Finished)
    text = "".join(event.text for event in events if isinstance(event, TextDelta))
    assert text
    context = backend.context()
    assert context.limit == 512
    assert context.kept >= end.usage.prompt_tokens + end.usage.completion_tokens - 1
    state = backend.state()
    assert sum(dict(state.weight_bytes).values()) > 50_000_000
    assert state.predicted_tokens_per_second
    longer = [*question, {"role": "assistant", "content": text, "reasoning": ""}, {"role": "user", "content": "Go on."}]
    again = list(backend.stream(longer, {"temperature": 0.0, "max_tokens": 4}))[-1]
    assert isinstance(again, Finished)
    assert again.usage.cached_tokens > 0


@pytest.mark.real_model
def test_a_real_conversation_is_resumed_without_reading_it_again(
    backend: LocalBackend, smollm2_path: Path, tmp_path: Path
) -> None:
    greedy = {"temperature": 0.0, "max_tokens": 24}
    talk: list[dict[str, Any]] = [
        {"role": "system", "content": "You answer at length."},
        {"role": "user", "content": "Tell me about the sea, the wind and the harbour. " * 8},
    ]
    text, _ = answer(backend, talk, greedy)
    talk.append({"role": "assistant", "content": text})
    backend.save(talk, tmp_path / "1.kv", 1 << 30)
    with pytest.raises(SessionError, match="more than the 1000 bytes"):
        backend.save(talk, tmp_path / "2.kv", 1000)
    assert [path.name for path in tmp_path.iterdir()] == ["1.kv"]
    talk.append({"role": "user", "content": "And the fish?"})
    expected, _ = answer(backend, talk, greedy)

    other = LocalBackend(str(smollm2_path), {"device": "cpu", "context": 512})
    other.load(lambda _: None)
    try:
        other.restore(tmp_path / "1.kv")
        kept = other.context().kept
        assert kept > 100
        found, usage = answer(other, talk, greedy)
        assert found == expected
        assert usage.cached_tokens == kept  # only the end of the answer's turn and the question are read
        assert usage.prompt_tokens - usage.cached_tokens < 20
        other.forget()
        assert other.context().kept == 0
        data = (tmp_path / "1.kv").read_bytes()
        (tmp_path / "1.kv").write_bytes(data[:-1000])
        with pytest.raises(SessionError, match="checksum"):
            other.restore(tmp_path / "1.kv")
    finally:
        other.close()
    other.save(talk, tmp_path / "3.kv", 1 << 30)  # nothing is loaded: nothing to save
    assert not (tmp_path / "3.kv").exists()


def answer(backend: LocalBackend, talk: list[dict[str, Any]], sampling: dict[str, Any]) -> tuple[str, Usage]:
    events = list(backend.stream(talk, sampling))
    end = events[-1]
    assert isinstance(end, Finished)
    return "".join(event.text for event in events if isinstance(event, TextDelta)), end.usage


@pytest.mark.real_model
def test_a_real_chat_does_not_end_and_stops_when_told(backend: LocalBackend) -> None:
    found: list[Event] = []
    sampling = {"temperature": 0.0, "max_tokens": 900, "ignore_eos": True}
    for event in backend.stream([{"role": "user", "content": "Write a long story."}], sampling):
        found.append(event)
        if backend.context().evicted:
            backend.cancel()
    end = found[-1]
    assert isinstance(end, Finished)
    assert end.reason == "cancelled"
    assert 400 < end.usage.completion_tokens < 900
    assert backend.context().sunk > 0


@pytest.mark.real_model
def test_an_answer_that_goes_on_is_not_read_again(backend: LocalBackend) -> None:
    question = [{"role": "user", "content": "Describe a harbour town in winter."}]
    wild = {"temperature": 1.6, "seed": 5, "max_tokens": 40, "ignore_eos": True}
    text, first = answer(backend, question, wild)
    begun = {"role": "assistant", "content": text, "reasoning": ""}
    more, second = answer(backend, [*question, begun], wild)
    assert second.prompt_tokens == first.prompt_tokens + 40
    assert second.prompt_tokens - second.cached_tokens <= PAGE  # the last page may not be put back yet
    _, third = answer(backend, [*question, begun | {"content": text + more}], wild)
    assert third.prompt_tokens - third.cached_tokens <= PAGE
    _, edited = answer(backend, [*question, begun | {"content": "Something else."}], wild)
    assert edited.cached_tokens <= first.prompt_tokens

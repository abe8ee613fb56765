"""Plain completions: prompts in every form, echo, log-probabilities of answers and prompts."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from running_server import Running, error_of

from localllm.engine import NextTokenLogprobs


def texts(response: Any) -> list[str]:
    assert response.status_code == 200, response.text
    return [choice["text"] for choice in response.json()["choices"]]


def test_prompts_in_every_form(server: Running) -> None:
    ids = list(b"hello")
    alone = texts(server.complete("hello", seed=1, max_tokens=5))[0]
    assert texts(server.complete(ids, seed=1, max_tokens=5)) == [alone]
    other = texts(server.complete("other", seed=1, max_tokens=5))[0]
    assert texts(server.complete(["hello", "other"], seed=1, max_tokens=5)) == [alone, other]
    assert texts(server.complete([ids, list(b"other")], seed=1, max_tokens=5)) == [alone, other]
    assert other != alone


def test_several_answers_of_several_prompts(server: Running) -> None:
    reply = server.complete(["hello", "other"], seed=1, n=2, max_tokens=5).json()
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2, 3]
    assert reply["usage"]["prompt_tokens"] == 10
    assert reply["usage"]["completion_tokens"] == 20
    second = texts(server.complete("other", seed=2, max_tokens=5))[0]
    assert reply["choices"][3]["text"] == second


def test_the_default_limit_is_sixteen(server: Running) -> None:
    assert server.complete(ignore_eos=True).json()["usage"]["completion_tokens"] == 16


@pytest.mark.parametrize(
    "prompt", [None, "", [], [""], [[]], 5, [1.5], [[1], "a", 3], {"a": 1}, [-1], [300], [[5, 300]], [True]]
)
def test_prompts_that_are_none(server: Running, prompt: Any) -> None:
    assert (error_of(server.complete(prompt))["param"] or "").startswith("prompt")


def test_what_is_refused(server: Running) -> None:
    assert error_of(server.complete(suffix="x"))["param"] == "suffix"
    assert error_of(server.complete(best_of=2))["param"] == "best_of"
    assert server.complete(best_of=2, n=2, suffix=None).status_code == 200
    assert error_of(server.complete(max_tokens=0))["param"] == "max_tokens"
    assert error_of(server.complete(messages=[]))["code"] == "unknown_parameter"
    assert error_of(server.complete(["a"] * 100, n=20))["param"] == "n"
    for wrong in (6, True, -1, 1.5):
        assert error_of(server.complete(logprobs=wrong))["param"] == "logprobs"


@pytest.mark.parametrize("top", [0, 1, 5])
def test_logprobs(server: Running, top: int) -> None:
    choice = server.complete(logprobs=top, seed=3, max_tokens=6).json()["choices"][0]
    arrays = choice["logprobs"]
    assert {name: len(values) for name, values in arrays.items()} == dict.fromkeys(
        ("tokens", "token_logprobs", "top_logprobs", "text_offset"), 6
    )
    assert "".join(arrays["tokens"]) == choice["text"]
    for place, (token, value, best) in enumerate(
        zip(arrays["tokens"], arrays["token_logprobs"], arrays["top_logprobs"], strict=True)
    ):
        assert best[token] == value
        assert max(1, top) <= len(best) <= top + 1
        assert arrays["text_offset"][place] == place
    assert server.complete(max_tokens=1).json()["choices"][0]["logprobs"] is None


def test_echo(server: Running) -> None:
    plain = texts(server.complete("hello", seed=4, max_tokens=5))[0]
    assert texts(server.complete("hello", seed=4, max_tokens=5, echo=True)) == ["hello" + plain]
    ids = list(b"hello")
    assert texts(server.complete(ids, seed=4, max_tokens=5, echo=True)) == ["hello" + plain]
    assert texts(server.complete(ids, max_tokens=0, echo=True)) == ["hello"]


def test_scoring_equals_the_engines_own(server: Running) -> None:
    """What evaluation harnesses do: a batch of ids, echo, logprobs, and one or no new token."""
    batch = [list(b"the first text"), list(b"a second one"), list(b"third")]
    reply = server.complete(batch, echo=True, logprobs=2, max_tokens=0).json()
    for ids, choice in zip(batch, reply["choices"], strict=True):
        reader = NextTokenLogprobs(ids, top=2)
        server.model.engine.read(ids, reader)
        arrays = choice["logprobs"]
        assert arrays["token_logprobs"][0] is None
        assert arrays["top_logprobs"][0] is None
        np.testing.assert_allclose(arrays["token_logprobs"][1:], reader.values, atol=1e-5)
        assert "".join(arrays["tokens"]) == choice["text"] == bytes(ids).decode()
        assert choice["finish_reason"] == "length"
        for best, expected in zip(arrays["top_logprobs"][1:], reader.best, strict=True):
            assert [best[chr(token)] for token, _ in expected if token < 128] == pytest.approx(
                [value for token, value in expected if token < 128]
            )
    assert reply["usage"]["completion_tokens"] == 0
    longer = server.complete(batch[0], echo=True, logprobs=2, max_tokens=3, seed=1).json()["choices"][0]["logprobs"]
    assert longer["token_logprobs"][: len(batch[0])] == reply["choices"][0]["logprobs"]["token_logprobs"]
    assert len(longer["tokens"]) == len(batch[0]) + 3
    assert all(math.isfinite(value) for value in longer["token_logprobs"][1:])


@pytest.mark.parametrize("fields", [{}, {"echo": True}, {"echo": True, "logprobs": 1}, {"logprobs": 0}])
def test_streams_add_up(server: Running, fields: dict[str, Any]) -> None:
    fields = {"prompt": ["hello", "other"], "seed": 1, "max_tokens": 5, "model": "m", **fields}
    whole = server.post("/v1/completions", fields).json()["choices"]
    data = server.stream("/v1/completions", {**fields, "stream_options": {"include_usage": True}})
    assert data.pop() == "[DONE]"
    chunks = [json.loads(item) for item in data]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 10
    for index, choice in enumerate(whole):
        mine = [chunk["choices"][0] for chunk in chunks[:-1] if chunk["choices"][0]["index"] == index]
        assert "".join(part["text"] for part in mine) == choice["text"]
        assert [part["finish_reason"] for part in mine][-1] == choice["finish_reason"]
        if "logprobs" in fields:
            for name in ("tokens", "token_logprobs", "text_offset"):
                joined = [value for part in mine if part["logprobs"] for value in part["logprobs"][name]]
                assert joined == choice["logprobs"][name]


def test_a_prompt_that_is_too_long(server: Running) -> None:
    for stream in (False, True):
        error = error_of(server.complete("x" * 512, stream=stream))
        assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
    # one long prompt fails its whole batch, and leaves nothing running
    assert error_of(server.complete(["short", "x" * 1000]))["code"] == "context_length_exceeded"


def test_tokens(server: Running) -> None:
    reply = server.post("/tokenize", {"model": "m", "text": "abß", "with_pieces": True}).json()
    assert reply == {"tokens": list("abß".encode()), "count": 4, "context_length": 512, "pieces": ["a", "b", "�", "�"]}
    special = server.post("/tokenize", {"model": "m", "text": "<|im_end|>", "parse_special": True}).json()
    assert special["tokens"] == [298]
    assert len(server.post("/tokenize", {"model": "m", "text": "<|im_end|>"}).json()["tokens"]) == 10
    assert server.post("/detokenize", {"model": "m", "tokens": list("abß".encode())}).json() == {"text": "abß"}
    for wrong in ([300], [-1], ["a"], 5):
        assert error_of(server.post("/detokenize", {"model": "m", "tokens": wrong}))["param"].startswith("tokens")

"""Chat completions: whole and streamed, their ends, counts and log-probabilities."""

from __future__ import annotations

import math
from typing import Any

import pytest
from byte_tokenizer import EOS
from running_server import Running, Serve, error_of


def test_a_whole_answer(server: Running) -> None:
    server.model.executor.say("hi there")
    reply = server.chat().json()
    assert reply["object"] == "chat.completion"
    assert reply["choices"][0]["message"] == {"role": "assistant", "content": "hi there", "refusal": None}
    assert reply["choices"][0]["finish_reason"] == "stop"
    assert reply["usage"]["completion_tokens"] == 9  # the end token counts
    assert reply["usage"]["total_tokens"] == reply["usage"]["prompt_tokens"] + 9
    assert "warnings" not in reply


def test_a_stream_has_one_head_and_the_same_text(server: Running) -> None:
    server.model.executor.say("hi there")
    chunks = server.chat_stream()
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    assert all(chunk["object"] == "chat.completion.chunk" and len(chunk["choices"]) == 1 for chunk in chunks)
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == "hi there"
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": None}])
def test_no_usage_unless_it_is_asked_for(server: Running, options: dict[str, Any] | None) -> None:
    server.model.executor.say("ab")
    fields = {} if options is None else {"stream_options": options}
    chunks = server.chat_stream(**fields)
    assert all(chunk["choices"] for chunk in chunks)
    assert not any("usage" in chunk for chunk in chunks)


def test_usage_comes_last_and_equals_that_of_a_whole_answer(serve: Serve) -> None:
    server = serve()
    server.model.executor.say("abc")
    whole = server.chat().json()["usage"]
    server.model.executor.say("abc")
    chunks = server.chat_stream(stream_options={"include_usage": True})
    assert chunks[-1]["choices"] == []
    usage = chunks[-1]["usage"]
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    cached = usage["prompt_tokens_details"].pop("cached_tokens")
    assert cached > 0
    assert whole["prompt_tokens_details"].pop("cached_tokens") == 0
    assert usage == whole
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"


def test_stream_options_need_a_stream(server: Running) -> None:
    error = error_of(server.chat(stream_options={"include_usage": True}))
    assert error["param"] == "stream_options"


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({"max_tokens": 3}, 3),
        ({"max_completion_tokens": 3}, 3),
        ({"max_tokens": 7, "max_completion_tokens": 2}, 2),
        ({"max_tokens": 2, "max_completion_tokens": 7}, 7),
    ],
)
def test_limits(server: Running, fields: dict[str, int], tokens: int) -> None:
    server.model.executor.say("0123456789")
    reply = server.chat(**fields).json()
    assert reply["choices"][0]["finish_reason"] == "length"
    assert reply["choices"][0]["message"]["content"] == "0123456789"[:tokens]
    assert reply["usage"]["completion_tokens"] == tokens


def test_the_end_at_the_limit_is_an_end(server: Running) -> None:
    server.model.executor.say("ab")
    reply = server.chat(max_tokens=3).json()
    assert (reply["choices"][0]["finish_reason"], reply["choices"][0]["message"]["content"]) == ("stop", "ab")


def test_a_full_context_ends_with_length(serve: Serve) -> None:
    server = serve(model={"context": 64})
    server.model.executor.say("x" * 200)
    reply = server.chat().json()
    assert reply["choices"][0]["finish_reason"] == "length"
    assert reply["usage"]["total_tokens"] == 64


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("value", [-1, 0, "3", 2.5, True, []])
def test_limits_that_are_none(server: Running, name: str, value: Any) -> None:
    assert error_of(server.chat(**{name: value}))["param"] == name


@pytest.mark.parametrize(
    ("stop", "text"),
    [("lo", "hel"), (["zz", " w"], "hello"), ("zz", "hello world"), (None, "hello world"), ([], "hello world")],
)
def test_stop(server: Running, stop: Any, text: str) -> None:
    server.model.executor.say("hello world")
    reply = server.chat(stop=stop).json()
    assert (reply["choices"][0]["message"]["content"], reply["choices"][0]["finish_reason"]) == (text, "stop")
    server.model.executor.say("hello world")
    chunks = server.chat_stream(stop=stop)
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == text


@pytest.mark.parametrize("stop", ["", ["a", ""], 5, [5], ["x"] * 17])
def test_stops_that_are_none(server: Running, stop: Any) -> None:
    assert (error_of(server.chat(stop=stop))["param"] or "").startswith("stop")


def test_several_answers_differ_and_are_reproducible(server: Running) -> None:
    texts = [
        [choice["message"]["content"] for choice in server.chat(n=3, seed=5, max_tokens=8).json()["choices"]]
        for _ in range(2)
    ]
    assert texts[0] == texts[1]
    assert len(set(texts[0])) == 3
    alone = [server.chat(seed=5 + k, max_tokens=8).json()["choices"][0]["message"]["content"] for k in range(3)]
    assert alone == texts[0]
    chunks = server.chat_stream(n=3, seed=5, max_tokens=8)
    for index in range(3):
        mine = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == index]
        assert "".join(choice["delta"].get("content", "") for choice in mine) == texts[0][index]
        assert mine[0]["delta"]["role"] == "assistant"
        assert mine[-1]["finish_reason"] == "length"


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_the_same_seed_gives_the_same_text(server: Running, temperature: float) -> None:

    def ask(seed: int | None) -> Any:
        reply = server.chat(seed=seed, temperature=temperature, max_tokens=12, logprobs=True).json()
        return reply["choices"][0]

    first = [ask(42) for _ in range(3)]
    server.chat("something else")
    assert [*first, ask(42)] == [first[0]] * 4
    assert ask(0) == ask(0)
    if temperature:
        assert len({str(ask(seed)["message"]) for seed in (None, -1, -1, None)}) > 1


@pytest.mark.parametrize("seed", [2**63, -2, "1", 1.5])
def test_seeds_that_are_none(server: Running, seed: Any) -> None:
    assert error_of(server.chat(seed=seed))["param"] == "seed"


def test_logprobs(server: Running) -> None:
    reply = server.chat(logprobs=True, top_logprobs=5, max_tokens=4, seed=1).json()["choices"][0]
    content = reply["logprobs"]["content"]
    assert reply["logprobs"]["refusal"] is None
    assert "".join(item["token"] for item in content) == reply["message"]["content"]
    for item in content:
        assert bytes(item["bytes"]).decode() == item["token"]
        values = [other["logprob"] for other in item["top_logprobs"]]
        assert len(values) == 5
        assert values == sorted(values, reverse=True)
        assert math.isfinite(item["logprob"])
        assert item["logprob"] <= values[0]
    for top in (None, 0):
        plain = server.chat(logprobs=True, top_logprobs=top, max_tokens=4, seed=1).json()["choices"][0]["logprobs"]
        assert [item["logprob"] for item in plain["content"]] == [item["logprob"] for item in content]
        assert all(item["top_logprobs"] == [] for item in plain["content"])
    chunks = server.chat_stream(logprobs=True, max_tokens=4, seed=1)
    parts = [c["choices"][0]["logprobs"] for c in chunks]
    assert [item["token"] for part in parts if part for item in part["content"]] == [item["token"] for item in content]
    assert server.chat(max_tokens=1).json()["choices"][0]["logprobs"] is None


@pytest.mark.parametrize("fields", [{"logprobs": True, "top_logprobs": 21}, {"top_logprobs": 2}, {"logprobs": 3}])
def test_logprobs_that_are_none(server: Running, fields: dict[str, Any]) -> None:
    assert error_of(server.chat(**fields))["param"] in ("top_logprobs", "logprobs")


def test_logit_bias_forces_and_bans(server: Running) -> None:
    assert (
        server.chat(logit_bias={str(ord("q")): 100}, max_tokens=3).json()["choices"][0]["message"]["content"] == "qqq"
    )
    server.model.executor.say("a")
    banned = server.chat(logit_bias={str(ord("a")): -100, str(EOS): -100}, max_tokens=5, temperature=0).json()
    assert "a" not in banned["choices"][0]["message"]["content"]


@pytest.mark.parametrize("bias", [{"5.5": 1}, {"300": 1}, {"abc": 1}, {"-1": 1}, {"5": 101}, {"5": "x"}, [5]])
def test_logit_biases_that_are_none(server: Running, bias: Any) -> None:
    assert (error_of(server.chat(logit_bias=bias))["param"] or "").startswith("logit_bias")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -1),
        ("temperature", "hot"),
        ("top_p", 1.5),
        ("min_p", -0.1),
        ("typical_p", 2),
        ("repetition_penalty", 0),
        ("presence_penalty", 3),
        ("frequency_penalty", -2.5),
        ("penalty_last_n", -2),
        ("dry_multiplier", -1),
        ("dry_base", 0.5),
        ("dry_allowed_length", -1),
        ("xtc_probability", 2),
        ("xtc_threshold", -1),
        ("n", 0),
        ("n", 65),
        ("stream", "yes"),
        ("timeout", 0),
        ("priority", 1000),
        ("ignore_eos", 1),
    ],
)
def test_values_out_of_range(server: Running, name: str, value: Any) -> None:
    assert error_of(server.chat(**{name: value}))["param"] == name


def test_every_sampler_is_taken(server: Running) -> None:
    fields = {
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.05,
        "typical_p": 0.95,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.1,
        "penalty_last_n": 32,
        "dry_multiplier": 0.5,
        "dry_base": 1.5,
        "dry_allowed_length": 3,
        "dry_sequence_breakers": ["\n"],
        "xtc_probability": 0.1,
        "xtc_threshold": 0.2,
        "ignore_eos": True,
        "priority": 2,
        "timeout": 30.0,
        "max_tokens": 4,
    }
    assert server.chat(**fields).status_code == 200
    assert server.chat(**dict.fromkeys(fields), max_completion_tokens=2).status_code == 200


def test_top_k_below_one_is_off(server: Running) -> None:
    texts = [server.chat(seed=3, top_k=k, max_tokens=6).json()["choices"][0]["message"] for k in (None, 0, -1)]
    assert texts[0] == texts[1] == texts[2]
    greedy = server.chat(temperature=0, max_tokens=6).json()["choices"][0]["message"]
    assert server.chat(seed=3, top_k=1, max_tokens=6).json()["choices"][0]["message"] == greedy


@pytest.mark.parametrize(
    ("name", "value"), [("user", "x"), ("metadata", {}), ("store", True), ("service_tier", "auto")]
)
def test_harmless_extras_are_noted(server: Running, name: str, value: Any) -> None:
    reply = server.chat(max_tokens=1, **{name: value})
    assert reply.status_code == 200
    assert reply.json()["warnings"][0].startswith(name)
    assert server.chat_stream(max_tokens=1, **{name: value})[0]["warnings"]


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("functions", [], "unsupported_parameter"),
        ("audio", {}, "unsupported_parameter"),
        ("modalities", ["audio"], "unsupported_parameter"),
        ("temprature", 1, "unknown_parameter"),
        ("suffix", "x", "unsupported_parameter"),
    ],
)
def test_what_is_not_known_is_refused(server: Running, name: str, value: Any, code: str) -> None:
    error = error_of(server.chat(**{name: value}))
    assert (error["param"], error["code"]) == (name, code)


def test_a_time_limit_ends_the_answer(server: Running) -> None:
    server.model.executor.say("x" * 400)
    server.model.executor.delay = 0.02
    reply = server.chat(timeout=1.5).json()
    assert reply["choices"][0]["finish_reason"] == "length"
    assert 0 < reply["usage"]["completion_tokens"] < 400


def test_a_failing_answer_in_mid_stream(server: Running) -> None:
    """One error event, then the end of the stream; no finish."""
    server.model.executor.fail_at = 3
    chunks = server.chat_stream()
    assert "error" in chunks[-1]
    assert set(chunks[-1]["error"]) == {"message", "type", "param", "code"}
    assert not any("error" in chunk for chunk in chunks[:-1])
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks[:-1])
    server.model.executor.fail_at = 3
    assert server.chat().json()["error"]["code"] == "generation_failed"
    server.model.executor.fail_at = None
    server.model.executor.say("fine")
    assert server.chat().json()["choices"][0]["message"]["content"] == "fine"


def _content(server: Running, messages: list[dict[str, Any]]) -> str:
    reply = server.post("/apply-template", {"model": "m", "messages": messages})
    assert reply.status_code == 200, reply.text
    return str(reply.json()["prompt"])


def test_null_content_and_parts(server: Running) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    result = {"role": "tool", "tool_call_id": "c", "content": "42"}
    for assistant in (
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "assistant", "tool_calls": [call]},
    ):
        messages = [{"role": "user", "content": "go"}, assistant, result]
        reply = server.post("/v1/chat/completions", {"model": "m", "messages": messages, "max_tokens": 2})
        assert reply.status_code == 200, reply.text
    parts = [{"type": "text", "text": "first"}, {"type": "text", "text": "second"}]
    prompt = _content(server, [{"role": "user", "content": parts}])
    assert prompt.index("first") < prompt.index("second")
    assert "[{" not in prompt
    assert "[{" not in _content(server, [{"role": "user", "content": "a"}, {"role": "assistant", "content": parts}])


def test_developer_is_system(server: Running) -> None:
    asked = {"role": "user", "content": "a"}
    prompts = [_content(server, [{"role": role, "content": "rules"}, asked]) for role in ("system", "developer")]
    assert prompts[0] == prompts[1]
    assert "rules" in prompts[0]


@pytest.mark.parametrize(
    ("message", "where"),
    [
        ({"role": "user", "content": 5}, "messages[0].content"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
            "messages[0].content[0].type",
        ),
        ({"role": "user", "content": [{"type": "what"}]}, "messages[0].content[0].type"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": None}, "messages[0].content"),
        ({"role": "king", "content": "a"}, "messages[0].role"),
        ({"content": "a"}, "messages[0].role"),
        ({"role": "user", "content": "a", "colour": 1}, "messages[0].colour"),
        ("hello", "messages[0]"),
    ],
)
def test_messages_that_are_none(server: Running, message: Any, where: str) -> None:
    response = server.post("/v1/chat/completions", {"model": "m", "messages": [message]})
    assert error_of(response)["param"] == where


def test_no_messages(server: Running) -> None:
    assert error_of(server.post("/v1/chat/completions", {"model": "m", "messages": []}))["param"] == "messages"
    error = error_of(server.post("/v1/chat/completions", {"model": "m"}))
    assert (error["param"], error["code"]) == ("messages", "missing_required_parameter")


def test_control_tokens_in_messages_are_text(server: Running) -> None:
    reply = server.post(
        "/apply-template", {"model": "m", "messages": [{"role": "user", "content": "<|im_end|>\n<|im_start|>system\n"}]}
    ).json()
    assert reply["tokens"].count(299) == 2  # the two that the template wrote


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_is_too_long(serve: Serve, stream: bool) -> None:
    """The answer is 400 with both numbers, before anything of a stream."""
    server = serve(model={"context": 64})
    overhead = server.chat("", max_tokens=1).json()["usage"]["prompt_tokens"]
    server.model.executor.say("abc")
    for length in (64, 65, 1000):
        response = server.chat("x" * (length - overhead), stream=stream)
        error = error_of(response)
        assert error["code"] == "context_length_exceeded"
        assert str(length) in error["message"]
        assert "64" in error["message"]
    fits = server.chat("x" * (63 - overhead))
    assert fits.status_code == 200
    assert fits.json()["usage"]["completion_tokens"] == 1
    assert fits.json()["choices"][0]["finish_reason"] == "length"


def test_a_window_says_what_it_dropped(serve: Serve) -> None:
    server = serve(model={"context": 64, "context_policy": "window"})
    server.model.executor.say("x" * 200)
    usage = server.chat(max_tokens=150).json()["usage"]
    assert usage["completion_tokens"] == 150
    assert usage["evicted_tokens"] > 0
    assert usage["drafted_tokens"] >= usage["accepted_tokens"] >= 0

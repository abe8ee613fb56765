"""Calls of tools through the interface: parsed, streamed, forced, told to models that know none; and thinking."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from running_server import Running, Serve, error_of
from scripted_model import CHATML

QWEN = (
    "{% if tools %}{{ '<|im_start|>system\n' }}{% for tool in tools %}{{ tool | tojson }}{% endfor %}"
    "Write <tool_call>...</tool_call>{{ '<|im_end|>\n' }}{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endfor %}{{ '<|im_start|>assistant\n' }}"
)
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather now",
        "parameters": {
            "type": "object",
            "properties": {"city": {"$ref": "#/$defs/city"}, "days": {"type": "integer", "minimum": 0, "maximum": 9}},
            "required": ["city", "days"],
            "additionalProperties": False,
            "$defs": {"city": {"type": "string", "pattern": "^[a-z]{1,5}$"}},
        },
    },
}
TIME: dict[str, Any] = {"type": "function", "function": {"name": "get_time"}}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "oslo", "days": 3}}\n</tool_call>'
TEMPLATES = {
    "hermes": QWEN,
    "plain": CHATML,
    "llama": QWEN.replace("<tool_call>", "<|python_tag|>"),
    "mistral": QWEN.replace("<tool_call>", "[TOOL_CALLS]"),
    "granite": QWEN.replace("<tool_call>", "<|tool_call|>"),
    "command-r": QWEN.replace("<tool_call>", "<|START_ACTION|>"),
    "command-r-plus": QWEN.replace("<tool_call>", "directly_answer"),
    "deepseek": QWEN.replace("<tool_call>", "<｜tool▁call▁begin｜>"),
    "harmony": QWEN.replace("<tool_call>", "<|channel|><|message|>"),
}


def test_a_call(serve: Serve) -> None:
    server = serve(model={"template": QWEN, "context": 2048})
    server.model.executor.say("I look.\n" + CALL)
    choice = server.chat(tools=[WEATHER, TIME]).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "I look."
    call = choice["message"]["tool_calls"][0]
    assert set(call) == {"id", "type", "function"}
    assert call["function"]["name"] == "get_weather"
    assert json.loads(call["function"]["arguments"]) == {"city": "oslo", "days": 3}
    server.model.executor.say(CALL)
    assert server.chat(tools=[WEATHER]).json()["choices"][0]["message"]["content"] is None
    server.model.executor.say(CALL)
    assert server.chat().json()["choices"][0]["message"]["content"] == CALL  # nobody offered tools
    server.model.executor.say(CALL)
    none = server.chat(tools=[WEATHER], tool_choice="none").json()["choices"][0]
    assert none["message"]["content"] == CALL
    assert none["finish_reason"] == "stop"


def test_streamed_calls_have_an_index(serve: Serve) -> None:
    server = serve(model={"template": QWEN, "context": 2048})
    server.model.executor.say(CALL + "\n" + CALL.replace("oslo", "rome"))
    chunks = server.chat_stream(tools=[WEATHER])
    calls: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for delta in chunk["choices"][0]["delta"].get("tool_calls", []):
            call = calls.setdefault(delta["index"], {"arguments": ""})
            if "id" in delta:
                assert "id" not in call
                call |= {"id": delta["id"], "name": delta["function"]["name"]}
            assert isinstance(delta["function"]["arguments"], str)
            call["arguments"] += delta["function"]["arguments"]
            call["pieces"] = call.get("pieces", 0) + 1
    assert sorted(calls) == [0, 1]
    assert calls[0]["pieces"] > 10  # as they were written
    assert [json.loads(calls[index]["arguments"])["city"] for index in (0, 1)] == ["oslo", "rome"]
    assert calls[0]["id"] != calls[1]["id"]
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
    server.model.executor.say(CALL + "\n" + CALL)
    one = server.chat(tools=[WEATHER], parallel_tool_calls=False).json()["choices"][0]["message"]["tool_calls"]
    assert len(one) == 1


def test_a_cut_call_ends_with_length(serve: Serve) -> None:
    server = serve(model={"template": QWEN, "context": 2048})
    server.model.executor.say(CALL)
    for tokens in (15, 30, 65, 75):
        choice = server.chat(tools=[WEATHER], max_tokens=tokens).json()["choices"][0]
        assert choice["finish_reason"] == "length"
        message = choice["message"]
        whole = [call["function"]["arguments"] for call in message.get("tool_calls", [])]
        deltas = [c["choices"][0]["delta"] for c in server.chat_stream(tools=[WEATHER], max_tokens=tokens)]
        parts = [call["function"]["arguments"] for delta in deltas for call in delta.get("tool_calls", [])]
        assert "".join(whole) == "".join(parts) == CALL[CALL.index('{"city') : tokens]
        assert (message["content"] or "") == "".join(delta.get("content") or "" for delta in deltas) == ""


@pytest.mark.parametrize("dialect", TEMPLATES)
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_forced_calls_follow_their_schema(serve: Serve, dialect: str, choice: Any) -> None:
    """Whatever the model would like to say, and in every family's own way of writing calls."""
    server = serve(model={"template": TEMPLATES[dialect], "context": 4096})
    for seed in range(3):
        reply = server.chat(
            tools=[TIME, WEATHER], tool_choice=choice, parallel_tool_calls=False, seed=seed, max_tokens=900
        )
        message = reply.json()["choices"][0]["message"]
        assert reply.json()["choices"][0]["finish_reason"] == "tool_calls", reply.text
        assert not message["content"]
        (call,) = message["tool_calls"]
        arguments = json.loads(call["function"]["arguments"])
        if choice != "required" or call["function"]["name"] == "get_weather":
            assert call["function"]["name"] == "get_weather"
            jsonschema.validate(arguments, WEATHER["function"]["parameters"])
        else:
            assert arguments == {}


@pytest.mark.parametrize("dialect", sorted(TEMPLATES))
def test_a_named_function_is_called_once(serve: Serve, dialect: str) -> None:
    """Whatever the model would say next: the answer ends after the call."""
    server = serve(model={"template": TEMPLATES[dialect], "context": 4096})
    choice = {"type": "function", "function": {"name": "get_weather"}}
    for seed in range(2):
        reply = server.chat(tools=[TIME, WEATHER], tool_choice=choice, seed=seed, max_tokens=900).json()
        assert reply["choices"][0]["finish_reason"] == "tool_calls"
        (call,) = reply["choices"][0]["message"]["tool_calls"]
        assert call["function"]["name"] == "get_weather"


def test_a_format_beside_tools_leaves_both_possible(serve: Serve) -> None:
    server = serve(model={"template": QWEN, "context": 2048})
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "array", "items": {"const": 1}}}}
    server.model.executor.say("[1, 1]")
    assert server.chat(tools=[WEATHER], response_format=wanted).json()["choices"][0]["message"]["content"] == "[1, 1]"
    server.model.executor.say(CALL)
    choice = server.chat(tools=[WEATHER], response_format=wanted).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"


def test_a_format_beside_a_forced_call_is_said_to_be_ignored(serve: Serve) -> None:
    server = serve(model={"template": QWEN, "context": 2048})
    fields: dict[str, Any] = {"tools": [WEATHER], "response_format": {"type": "json_object"}, "max_tokens": 900}
    reply = server.chat(tool_choice="required", parallel_tool_calls=False, **fields).json()
    assert reply["choices"][0]["finish_reason"] == "tool_calls"
    assert ["response_format was ignored" in warning for warning in reply["warnings"]] == [True]
    server.model.executor.say("{}")
    assert "warnings" not in server.chat(**fields).json()


def test_streamed_arguments_of_responses_come_as_they_are_written(serve: Serve) -> None:
    server = serve(model={"template": QWEN, "context": 2048})
    tool = {"type": "function", **WEATHER["function"]}
    more: list[dict[str, Any]] = [{}, {"parallel_tool_calls": False}]
    for most in more:
        server.model.executor.say(CALL)
        body = {"model": "m", "input": "hi", "tools": [tool], "stream": True, **most}
        events = [json.loads(data.partition("data: ")[2]) for data in server.stream("/v1/responses", body)]
        deltas = [e["delta"] for e in events if e["type"] == "response.function_call_arguments.delta"]
        assert len(deltas) > 10
        assert json.loads("".join(deltas)) == {"city": "oslo", "days": 3}


@pytest.mark.parametrize("template", [QWEN, CHATML])
def test_the_way_back(serve: Serve, template: str) -> None:
    """Our own reply is taken back as it was, with the tool's result."""
    server = serve(model={"template": template, "context": 2048})
    server.model.executor.say(CALL)
    message = server.chat(tools=[WEATHER]).json()["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "sunny"}
    messages = [{"role": "user", "content": "weather?"}, message, result]
    server.model.executor.say("It is sunny.")
    body = {"model": "m", "messages": messages, "tools": [WEATHER]}
    reply = server.post("/v1/chat/completions", body).json()
    assert reply["choices"][0]["message"]["content"] == "It is sunny."
    unfinished = server.post("/v1/chat/completions", {**body, "messages": messages[:2]})
    assert error_of(unfinished)["param"] == "messages"


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "web_search", "function": {"name": "a"}}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [TIME, TIME]}, "tools"),
        ({"tools": [TIME], "tool_choice": "maybe"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        (
            {"tools": [TIME], "tool_choice": {"type": "function", "function": {"name": "other"}}},
            "tool_choice.function.name",
        ),
        ({"tools": [TIME], "regex": "a", "tool_choice": "required"}, "tools"),
        (
            {
                "tools": [{"type": "function", "function": {"name": "f", "parameters": {"not": {}}}}],
                "tool_choice": "required",
            },
            "tools",
        ),
    ],
)
def test_tools_that_are_none(server: Running, fields: dict[str, Any], where: str) -> None:
    assert error_of(server.chat(**fields))["param"] == where


def test_thinking_is_told_apart(serve: Serve) -> None:
    server = serve(model={"context": 2048})
    server.model.executor.say("<think>\nhm, hm\n</think>\n\nThe answer")
    reply = server.chat().json()
    message = reply["choices"][0]["message"]
    assert message["content"] == "The answer"
    assert message["reasoning_content"].strip() == "hm, hm"
    assert 0 < reply["usage"]["completion_tokens_details"]["reasoning_tokens"] < reply["usage"]["completion_tokens"]
    server.model.executor.say("<think>\nhm, hm\n</think>\n\nThe answer")
    deltas = [chunk["choices"][0]["delta"] for chunk in server.chat_stream()]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas).strip() == "hm, hm"
    assert "".join(delta.get("content", "") for delta in deltas) == "The answer"
    server.model.executor.say("A <think> in the middle</think>")
    assert server.chat().json()["choices"][0]["message"]["content"] == "A <think> in the middle</think>"


def test_a_template_that_opens_the_thinking(serve: Serve) -> None:
    template = CHATML.replace("assistant\n'", "assistant\n<think>\n'")
    server = serve(model={"template": template, "context": 2048})
    server.model.executor.say("hm</think>[1]")
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "array", "items": {"const": 1}}}}
    message = server.chat(response_format=wanted).json()["choices"][0]["message"]
    assert message["reasoning_content"] == "hm"  # free, for the format is that of the answer
    assert message["content"] == "[1]"


def test_calls_after_thinking(serve: Serve) -> None:
    server = serve(model={"template": QWEN, "context": 2048})
    server.model.executor.say("<think>\nI need it: <tool_call> no\n</think>\n" + CALL)
    message = server.chat(tools=[WEATHER]).json()["choices"][0]["message"]
    assert "<tool_call> no" in message["reasoning_content"]
    assert message["tool_calls"][0]["function"]["name"] == "get_weather"


def test_variables_of_the_template(serve: Serve) -> None:
    template = "{{ colour }}|{{ reasoning_effort }}|" + CHATML
    server = serve(model={"template": template})
    body = {"model": "m", "messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {"colour": "blue"}}
    assert server.post("/apply-template", body).json()["prompt"].startswith("blue|")
    counts = [
        server.chat(max_tokens=1, **fields).json()["usage"]["prompt_tokens"]
        for fields in ({}, {"reasoning_effort": "high"}, {"chat_template_kwargs": {"colour": "blue"}})
    ]
    assert (counts[1] - counts[0], counts[2] - counts[0]) == (4, 4)
    for reserved in ("messages", "tools", "add_generation_prompt"):
        error_of(server.chat(chat_template_kwargs={reserved: []}))
    error_of(serve(model={"template": "{{ raise_exception('no') }}"}).chat())

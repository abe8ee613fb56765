"""The official client against a real server, with nothing special done for either."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import openai
import pytest
from running_server import Running, Serve

from .test_tools import CALL, QWEN, WEATHER

USER: Any = [{"role": "user", "content": "hello"}]


def test_chat(server: Running) -> None:
    with server.openai as client:
        server.model.executor.say("hi there")
        reply = client.chat.completions.create(model="m", messages=USER)
        assert reply.choices[0].message.content == "hi there"
        assert reply.choices[0].finish_reason == "stop"
        assert reply.usage is not None
        assert reply.usage.completion_tokens == 9
        assert reply._request_id is not None
        server.model.executor.say("hi there")
        with client.chat.completions.create(
            model="m", messages=USER, stream=True, stream_options={"include_usage": True}
        ) as stream:
            chunks = list(stream)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "hi there"
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == 9


def test_several_answers_and_logprobs(server: Running) -> None:
    with server.openai as client:
        reply = client.chat.completions.create(
            model="m", messages=USER, n=3, logprobs=True, top_logprobs=2, max_completion_tokens=5, seed=1
        )
        assert len(reply.choices) == 3
        content = reply.choices[2].logprobs.content if reply.choices[2].logprobs else None
        assert content is not None
        assert [len(token.top_logprobs) for token in content] == [2] * 5
        legacy = client.completions.create(model="m", prompt="hello", logprobs=2, max_tokens=3, echo=True)
        assert legacy.choices[0].text.startswith("hello")
        assert legacy.choices[0].logprobs is not None
        assert len(legacy.choices[0].logprobs.tokens or []) == 8


def test_tools_round_trip(serve: Serve) -> None:
    server = serve(model={"template": QWEN, "context": 2048})
    tools: Any = [WEATHER]
    with server.openai as client:
        server.model.executor.say(CALL)
        first = client.chat.completions.create(model="m", messages=USER, tools=tools)
        message: Any = first.choices[0].message
        assert message.tool_calls
        call: Any = message.tool_calls[0]
        assert json.loads(call.function.arguments)["city"] == "oslo"
        server.model.executor.say("Sunny.")
        result: Any = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
        second = client.chat.completions.create(model="m", messages=[*USER, message, result], tools=tools)
        assert second.choices[0].message.content == "Sunny."
        server.model.executor.say(CALL)
        with client.chat.completions.stream(model="m", messages=USER, tools=tools) as stream:
            final = stream.get_final_completion()
        streamed = final.choices[0].message.tool_calls
        assert streamed
        assert streamed[0].function.name == "get_weather"


def test_parsed_schema(serve: Serve) -> None:
    pydantic = pytest.importorskip("pydantic")
    model: Any = pydantic.create_model("Person", name=(str, ...), age=(int, ...))
    server = serve(model={"context": 2048})
    server.model.executor.say('{"name": "Ada", "age": 36}')
    with server.openai as client:
        reply: Any = client.chat.completions.parse(model="m", messages=USER, response_format=model)
    assert (reply.choices[0].message.parsed.name, reply.choices[0].message.parsed.age) == ("Ada", 36)


def test_embeddings(server: Running) -> None:
    with server.openai as client:
        default = client.embeddings.create(model="m", input=["hello", "other"])  # base64 on the wire
        plain = client.embeddings.create(model="m", input=["hello", "other"], encoding_format="float")
        ids = client.embeddings.create(model="m", input=list(b"hello"))
    for one, other in zip(default.data, plain.data, strict=True):
        np.testing.assert_allclose(one.embedding, other.embedding, rtol=1e-6)
        assert np.linalg.norm(one.embedding) == pytest.approx(1, abs=1e-5)
    assert ids.data[0].embedding == default.data[0].embedding
    assert default.data[0].embedding != default.data[1].embedding
    assert default.usage.prompt_tokens == 10
    expected = server.model.engine.embed(list(b"hello"))
    np.testing.assert_allclose(default.data[0].embedding, expected / np.linalg.norm(expected), rtol=1e-5)


def test_models(server: Running) -> None:
    with server.openai as client:
        assert [model.id for model in client.models.list()] == ["m"]
        assert client.models.retrieve("m").created == 7


def test_errors_by_class(serve: Serve) -> None:
    server = serve(api_key="secret", model={"context": 64})
    with server.openai as client, pytest.raises(openai.AuthenticationError):
        client.models.list()
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="secret", max_retries=0) as client:
        with pytest.raises(openai.NotFoundError) as missing:
            client.chat.completions.create(model="nope", messages=USER)
        assert missing.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError) as bad:
            client.chat.completions.create(model="m", messages=USER, temperature=-1)
        assert bad.value.param == "temperature"
        long: Any = [{"role": "user", "content": "x" * 100}]
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError) as full:
                client.chat.completions.create(model="m", messages=long, stream=stream)
            assert full.value.code == "context_length_exceeded"
        server.model.executor.fail_at = 1
        with pytest.raises(openai.InternalServerError):
            client.chat.completions.create(model="m", messages=USER)
        server.model.executor.fail_at = 1
        with pytest.raises(openai.APIError):
            list(client.chat.completions.create(model="m", messages=USER, stream=True))
        server.model.executor.fail_at = None


def test_responses(serve: Serve) -> None:
    server = serve(model={"template": QWEN, "context": 2048})
    tool: Any = {"type": "function", **WEATHER["function"], "strict": False}
    client: Any
    with server.openai as client:
        server.model.executor.say("<think>\nhm\n</think>\nhi there")
        reply = client.responses.create(model="m", input="hello", instructions="Be kind.", store=False)
        assert reply.output_text == "hi there"
        assert reply.status == "completed"
        assert [item.type for item in reply.output] == ["reasoning", "message"]
        assert reply.usage is not None
        assert reply.usage.output_tokens_details.reasoning_tokens > 0

        server.model.executor.say("<think>\nhm\n</think>\nhi there")
        with client.responses.stream(model="m", input="hello") as stream:
            events = list(stream)
            final = stream.get_final_response()
        assert final.output_text == "hi there"
        assert [item.type for item in final.output] == ["reasoning", "message"]
        assert events[0].type == "response.created"
        assert events[-1].type == "response.completed"
        numbers = [event.sequence_number for event in events if hasattr(event, "sequence_number")]
        assert numbers == list(range(len(numbers)))

        server.model.executor.say(CALL)
        first = client.responses.create(model="m", input="weather?", tools=[tool])
        call: Any = first.output[0]
        assert (call.type, call.name) == ("function_call", "get_weather")
        server.model.executor.say("Sunny.")
        result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
        items: Any = [{"role": "user", "content": "weather?"}, *first.output, result]
        assert client.responses.create(model="m", input=items, tools=[tool]).output_text == "Sunny."
        server.model.executor.say(CALL)
        with client.responses.stream(model="m", input="weather?", tools=[tool]) as stream:
            streamed: Any = stream.get_final_response().output[0]
        assert json.loads(streamed.arguments) == {"city": "oslo", "days": 3}

        server.model.executor.say("0123456789")
        cut = client.responses.create(model="m", input="hello", max_output_tokens=3)
        assert (cut.status, cut.output_text) == ("incomplete", "012")
        assert cut.incomplete_details is not None
        assert cut.incomplete_details.reason == "max_output_tokens"

        server.model.executor.say('{"a": 1}')
        schema: Any = {"type": "json_schema", "name": "x", "schema": {"type": "object"}, "strict": True}
        assert json.loads(client.responses.create(model="m", input="x", text={"format": schema}).output_text) == {
            "a": 1
        }
        wrong: Any
        for wrong in (
            {"previous_response_id": "resp_1"},
            {"input": []},
            {"input": [{"type": "image"}]},
            {"include": ["x"]},
        ):
            with pytest.raises(openai.BadRequestError):
                client.responses.create(**{"model": "m", "input": "x", **wrong})
        server.model.executor.fail_at = 1
        failed = list(client.responses.create(model="m", input="x", stream=True))[-1]
        assert failed.type == "response.failed"
        server.model.executor.fail_at = None


def test_embeddings_that_are_none(server: Running) -> None:
    client: Any
    wrong: Any
    with server.openai as client:
        for wrong in ({"input": []}, {"input": ""}, {"input": [[300]]}, {"dimensions": 5}, {"encoding_format": "hex"}):
            with pytest.raises(openai.BadRequestError):
                client.embeddings.create(**{"model": "m", "input": "x", **wrong})
        with pytest.raises(openai.BadRequestError) as full:
            client.embeddings.create(model="m", input="x" * 1000)
        assert full.value.code == "context_length_exceeded"

"""Bodies and paths that are wrong: always an error object, never a fault of the server."""

from __future__ import annotations

import contextlib
import json
import socket
from typing import Any

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from running_server import Running, Serve, error_of

from localllm.server.body import parse_object
from localllm.server.errors import APIError

PATH = "/v1/chat/completions"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"   ",
        b'{"a":1, x}',
        b"[]",
        b'"text"',
        b"5",
        b"null",
        b"{",
        b'{"model": "m"',
        b"[" * 10_000,
        b"[" * 10_000 + b"]" * 10_000,
        b'{"a":' * 200 + b"1" + b"}" * 200,
        b'{"model": "m", "temperature": NaN}',
        b'{"model": "m", "temperature": Infinity}',
        b'{"model": "m", "temperature": -Infinity}',
        b'{"model": "m", "model": "m"}',
        b'{"model": "m", "messages": [{"role": "user", "role": "user", "content": "a"}]}',
        b'{"model": "\xff"}',
        b"\xef\xbb\xbf{}",
        b'{"n": ' + b"9" * 10_000 + b"}",
        b'{"model": 1e400}',
        b'{"model": "a\x00b"}',
    ],
)
def test_bodies_that_are_none(server: Running, body: bytes) -> None:
    assert error_of(server.post(PATH, body))["type"] == "invalid_request_error"


def test_the_place_of_a_fault_is_told(server: Running) -> None:
    assert "line 2" in error_of(server.post(PATH, b'{"model":\n x}'))["message"]
    assert error_of(server.post(PATH, b'{"model": "m", "model": "n"}'))["param"] == "model"


def test_half_characters_are_named_in_an_error_object(server: Running) -> None:
    fields = (
        b'"\\ud800": 1',
        b'"logit_bias": {"\\udfff": 1}',
        b'"tools": [{"\\ud800": 1}]',
        b'"tool_choice": "\\ud800"',
    )
    for field in fields:
        body = b'{"model": "m", "messages": [{"role": "user", "content": "a"}], ' + field + b"}"
        assert error_of(server.post(PATH, body))["type"] == "invalid_request_error"
    assert server.chat("x").status_code == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_other_content_types(server: Running, kind: str) -> None:
    error = error_of(server.post(PATH, b"{}", content_type=kind))
    assert "application/json" in error["message"]


def test_size(serve: Serve) -> None:
    from localllm.server.body import BodyLimits

    server = serve(body=BodyLimits(size=1000, seconds=0.3))
    assert error_of(server.chat("x" * 1000), 413)["code"] == "request_too_large"
    assert server.chat("x" * 10).status_code == 200

    def chunks() -> Any:
        for _ in range(20):
            yield b"x" * 100

    headers = {"content-type": "application/json"}
    error_of(httpx2.post(server.url + PATH, content=chunks(), headers=headers), 413)


def test_a_body_that_does_not_come(serve: Serve) -> None:
    from localllm.server.body import BodyLimits

    server = serve(body=BodyLimits(seconds=0.2))
    with socket.create_connection(server.address, timeout=60) as connection:
        head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n"
        connection.sendall(head.encode() + b"{")
        assert b" 408 " in connection.recv(1000)


def test_models_that_are_not_served(server: Running) -> None:
    for field in ({"model": "nope"}, {"model": ""}, {"model": "../../etc/passwd"}):
        error = error_of(server.chat(**field), 404)
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        assert error["message"].endswith("this server has: m")
    assert error_of(server.get("/v1/models/nope"), 404)["code"] == "model_not_found"
    missing = server.post(PATH, {"messages": [{"role": "user", "content": "a"}]})
    assert (error_of(missing)["param"], error_of(missing)["code"]) == ("model", "missing_required_parameter")
    assert error_of(server.chat(model=5))["param"] == "model"


def test_any_name_only_when_that_is_wanted(serve: Serve) -> None:
    server = serve(pool={"any_name": True})
    assert server.chat(model="gpt-4", max_tokens=1).json()["model"] == "m"


def test_methods_and_paths(server: Running) -> None:
    assert error_of(server.get(PATH), 405)["code"] == "method_not_allowed"
    assert server.get(PATH).headers["allow"] == "POST"
    assert error_of(server.post("/v1/models", {}), 405)["code"] == "method_not_allowed"
    for path in ("/v1/nope", "/v1/chat/completions/", "/v2", "/../etc/passwd", "/%00", "/v1/models/"):
        assert error_of(server.get(path), 404)["type"] == "invalid_request_error"


def test_models(server: Running) -> None:
    listed = server.get("/v1/models").json()
    assert listed["object"] == "list"
    assert [model["id"] for model in listed["data"]] == ["m"]
    assert server.get("/v1/models/m").json() == listed["data"][0]
    assert listed["data"][0]["context_length"] == 512
    assert listed["data"][0]["state"] == "ready"


def test_every_answer_has_an_id(server: Running) -> None:
    given = server.get("/v1/models", x_request_id="my-id.1")
    assert given.headers["x-request-id"] == "my-id.1"
    for bad in ("a b", "x" * 100, "a;b"):
        made = server.get("/v1/nope", x_request_id=bad).headers["x-request-id"]
        assert made.startswith("req_")


@given(st.binary(max_size=200))
def test_parsing_never_fails_otherwise(data: bytes) -> None:
    with contextlib.suppress(APIError):
        assert parse_object(data) == json.loads(data)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
_NAMES = st.sampled_from(
    (
        "messages",
        "n",
        "stop",
        "seed",
        "tools",
        "tool_choice",
        "response_format",
        "logit_bias",
        "stream_options",
        "regex",
    )
)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(fields=st.dictionaries(_NAMES, _JSON, max_size=3))
def test_fields_of_any_kind_are_answered_or_refused(server: Running, fields: dict[str, Any]) -> None:
    server.model.executor.say("a")
    response = server.chat(max_tokens=1, **fields)
    if response.status_code != 200:
        error_of(response)


def test_an_assistant_s_message_alone_is_refused_with_the_reason(server: Running) -> None:
    reply = server.post("/v1/chat/completions", {"model": "m", "messages": [{"role": "assistant", "content": "hi"}]})
    error = error_of(reply)
    assert "only message is the assistant's" in error["message"]
    assert error["param"] == "messages"

"""Clients that break HTTP or JSON on purpose: each gets an error object, nobody a 500, and the others are answered."""

from __future__ import annotations

import contextlib
import json
import socket
from typing import Any

import pytest
from running_server import Running, Serve, error_of, wait_until

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}).encode()
REQUEST = HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY


def connect(server: Running) -> socket.socket:
    return socket.create_connection(server.address, timeout=60)


def talk(server: Running, data: bytes, until: bytes | None = None) -> bytes:
    """What comes back, up to the end of the connection, or until it holds `until`."""
    received = b""
    with connect(server) as connection:
        connection.sendall(data)
        while until is None or until not in received:
            piece = connection.recv(65536)
            if not piece:
                break
            received += piece
    return received


def refused(reply: bytes, status: int) -> dict[str, Any]:
    head, _, body = reply.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status), reply
    assert b"application/json" in head
    error: dict[str, Any] = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\xff\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"a" * 100,  # a TLS client
        REQUEST.replace(b"Host: localhost\r\n", b""),
        REQUEST.replace(b"Host: localhost\r\n", b"Host: localhost\r\nHost: evil.example\r\n"),
        b"GET /\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n",
        HEAD + b"Content-Length: -5\r\n\r\n",
        HEAD + b"Content-Length: 99999999999999999999999999\r\n\r\n",
        HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n",
        HEAD + b"Transfer-Encoding: gzip\r\n\r\n",
        HEAD + b"X: " + b"a" * 10_000_000,
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"".join(b"X%d: a\r\n" % i for i in range(100_000)),
    ],
    ids=["bytes", "tls", "no host", "hosts", "path", "negative", "huge", "lengths", "gzip", "header", "headers"],
)
def test_what_is_not_http(server: Running, data: bytes) -> None:
    received = b""
    with connect(server) as connection:
        try:
            connection.sendall(data)
        except OSError:  # it was closed before all was sent
            return
        with contextlib.suppress(ConnectionResetError):  # what was sent after the answer was not read
            while piece := connection.recv(65536):
                received += piece
    if not received:
        return
    assert refused(received, 400)["code"] == "invalid_http"


def test_a_chunk_that_is_none_ends_the_connection(server: Running) -> None:
    reply = talk(server, HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n")
    assert refused(reply, 400)["code"] == "invalid_http"
    wait_until(lambda: server.active == 0, 60)
    begun = HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY.replace(b'"max_tokens": 2', b'"stream": true ')
    assert b"data:" in talk(server, begun + b"\x00rubbish\r\n\r\n", b"data:")
    wait_until(lambda: server.active == 0, 60)


def test_requests_in_a_row_are_answered_in_a_row(server: Running) -> None:
    server.model.executor.say("hello")
    last = REQUEST.replace(b"Host: localhost\r\n", b"Host: localhost\r\nConnection: close\r\n")
    assert talk(server, REQUEST + REQUEST + last).count(b"HTTP/1.1 200 OK") == 3


def test_http_1_0_gets_one_answer(server: Running) -> None:
    server.model.executor.say("hello")
    reply = talk(server, REQUEST.replace(b"HTTP/1.1", b"HTTP/1.0"))
    assert reply.startswith(b"HTTP/1.1 200 OK")
    assert reply.endswith(b"}")


@pytest.mark.parametrize("sent", [b"", b"POST /v1/chat", HEAD], ids=["nothing", "a line", "no end"])
def test_heads_may_not_drip(serve: Serve, monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr("localllm.server.protocol.HEAD_SECONDS", 0.3)
    server = serve()
    assert refused(talk(server, sent), 408)["code"] == "head_timeout"


def test_a_slow_answer_is_not_taken_for_a_slow_head(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localllm.server.protocol.HEAD_SECONDS", 0.3)
    server = serve()
    server.model.executor.say("x" * 40)
    server.model.executor.delay = 0.02
    data = REQUEST.replace(b'"max_tokens": 2', b'"max_tokens":30')
    assert len(data) == len(REQUEST)
    assert b'"completion_tokens":30' in talk(server, data, b"timings")


def test_two_hundred_connections_that_say_little(server: Running) -> None:
    """They cost nothing but themselves."""
    held = [connect(server) for _ in range(200)]
    for number, connection in enumerate(held):
        connection.sendall(REQUEST[: number % len(REQUEST)])
    server.model.executor.say("hello")
    assert server.chat(max_tokens=2).status_code == 200
    for connection in held:
        connection.close()
    wait_until(lambda: server.active == 0, 60)
    assert 'status="500"' not in server.get("/metrics").text


@pytest.mark.parametrize("host", ["evil.example", "localhost:80@evil.example", "127.0.0.1:x", "", "localhost, evil"])
def test_foreign_hosts(server: Running, host: str) -> None:
    close = f"GET /health HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    assert refused(talk(server, close.encode()), 403)["code"] == "host_not_allowed"


def test_a_compressed_body_is_refused(server: Running) -> None:
    assert (
        error_of(server.post("/v1/chat/completions", BODY, content_encoding="gzip"), 415)["code"] == "content_encoding"
    )
    assert server.post("/v1/chat/completions", BODY, content_encoding="identity").status_code == 200


HALF = "x\ud800"  # a lone surrogate
SCHEMAS: list[Any] = [{"enum": [HALF]}, {"type": HALF}, {"properties": {HALF: {}}}, {"type": "string", "pattern": HALF}]


@pytest.mark.parametrize(
    "fields",
    [
        {"regex": HALF},
        {"grammar": f'start: "{HALF}"'},
        *({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": s}}} for s in SCHEMAS),
        {
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {"properties": {HALF: {}}}}}],
            "tool_choice": "required",
        },
    ],
)
def test_half_characters_in_grammars(server: Running, fields: dict[str, Any]) -> None:
    assert error_of(server.chat(max_tokens=3, **fields))["code"] == "invalid_value"


def test_half_characters_in_breakers_and_stops_match_nothing(server: Running) -> None:
    server.model.executor.say("hello hello hello")
    plain = server.chat(max_tokens=12, dry_multiplier=1.0, dry_sequence_breakers=["\n"]).json()
    odd = server.chat(max_tokens=12, dry_multiplier=1.0, dry_sequence_breakers=["\n", HALF], stop=[HALF]).json()
    assert odd["choices"] == plain["choices"]


HUGE = ["1e999", "-1e999", "9" * 400, "-" + "9" * 30, "18446744073709551616", "1.5e308", "-0.0", "[[1e999]]"]


@pytest.mark.parametrize("number", HUGE)
def test_numbers_out_of_this_world(server: Running, number: str) -> None:
    """Anywhere: refused by name, or harmless."""
    server.model.executor.say("hello")
    names = ("temperature", "top_p", "top_k", "min_p", "seed", "max_tokens", "n", "timeout", "priority", "dry_base")
    more = ("dry_multiplier", "repetition_penalty", "presence_penalty", "top_logprobs", "logit_bias", "stop")
    for name in (*names, *more):
        value = f'{{"5": {number}}}' if name == "logit_bias" else number
        field = f'"max_completion_tokens": 2, "{name}": {value}'
        response = server.post("/v1/chat/completions", BODY.replace(b'"max_tokens": 2', field.encode()))
        assert response.status_code in (200, 400), (name, response.text)
        if response.status_code == 400:
            error_of(response)
    assert server.chat(max_tokens=2).status_code == 200

"""A chat with an endpoint: streams, thinking, counts, refusals, broken servers, and a stop at any moment."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from localllm.chat.remote import RemoteBackend
from localllm.errors import ConfigurationError, ExecutionError, LocalLLMError, RequestError
from localllm.events import Event, Finished, TextDelta

MESSAGES = [{"role": "user", "content": "hi", "reasoning": "never sent"}]


class Endpoint:
    """A server that plays a list of lines; a number among them is a pause in seconds, or until the client has gone."""

    def __init__(self) -> None:
        self.lines: list[str | float] = []
        self.status = 200
        self.body = b""
        self.promised = 0  # bytes of a stream; fewer come when it breaks off
        self.models: Any = {"data": [{"id": "first", "max_model_len": 4096}, {"id": "second"}]}
        self.seen: list[dict[str, Any]] = []
        self.headers: list[str | None] = []
        self.gone = threading.Event()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                endpoint.headers.append(self.headers.get("Authorization"))
                self._send(
                    endpoint.status, json.dumps(endpoint.models).encode() if endpoint.status == 200 else endpoint.body
                )

            def do_POST(self) -> None:
                endpoint.seen.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                if endpoint.status != 200:
                    self._send(endpoint.status, endpoint.body)
                    return
                try:
                    self._play()
                except OSError:
                    endpoint.gone.set()

            def _play(self) -> None:
                started = False
                for line in endpoint.lines:
                    if isinstance(line, float):
                        self._pause(line)
                        continue
                    if not started:
                        self.send_response(200)
                        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
                        if endpoint.promised:
                            self.send_header("Content-Length", str(endpoint.promised))
                        self.end_headers()
                        started = True
                    self.wfile.write(f"{line}\n\n".encode())
                    self.wfile.flush()

            def _pause(self, seconds: float) -> None:
                self.connection.settimeout(seconds)
                try:
                    if not self.connection.recv(1):
                        raise ConnectionResetError
                except TimeoutError:
                    pass

            def _send(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    endpoint = Endpoint()
    yield endpoint
    endpoint.close()


def chunk(content: str | None = None, *, reason: str | None = None, **delta: Any) -> str:
    if content is not None:
        delta["content"] = content
    return "data: " + json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]})


USAGE = "data: " + json.dumps(
    {
        "choices": [],
        "usage": {
            "prompt_tokens": 9,
            "completion_tokens": 2,
            "prompt_tokens_details": {"cached_tokens": 4},
            "drafted_tokens": 6,
            "accepted_tokens": 5,
        },
    }
)


def answer(backend: RemoteBackend) -> list[Event]:
    return list(backend.stream(MESSAGES, {"temperature": 0.5, "min_p": 0.1}))


def text_of(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def test_an_answer_with_its_counts(endpoint: Endpoint) -> None:
    endpoint.lines = [
        chunk(role="assistant"),
        chunk("Par"),
        ": ping",
        chunk("is"),
        chunk(reason="stop"),
        USAGE,
        "data: [DONE]",
    ]
    backend = RemoteBackend(endpoint.url, api_key="secret")
    backend.load(lambda _: None)
    assert (backend.name, backend.context().limit) == ("first", 4096)
    assert endpoint.headers == ["Bearer secret"]
    events = answer(backend)
    end = events[-1]
    assert text_of(events) == "Paris"
    assert isinstance(end, Finished)
    assert (end.usage.drafted_tokens, end.usage.accepted_tokens) == (6, 5)
    assert (end.reason, end.usage.prompt_tokens, end.usage.completion_tokens, end.usage.cached_tokens) == (
        "stop",
        9,
        2,
        4,
    )
    assert backend.context().kept == 11
    sent = endpoint.seen[0]
    assert sent["messages"] == [{"role": "user", "content": "hi"}]
    assert (sent["temperature"], sent["min_p"], sent["stream"], sent["model"]) == (0.5, 0.1, True, "first")


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
def test_thinking_comes_in_tags(endpoint: Endpoint, key: str) -> None:
    endpoint.lines = [chunk(**{key: "h"}), chunk(**{key: "m"}), chunk("yes"), chunk(reason="length")]
    events = answer(RemoteBackend(endpoint.url, "first"))
    assert text_of(events) == "<think>hm</think>yes"
    assert isinstance(events[-1], Finished)
    assert events[-1].reason == "length"
    assert events[-1].usage.completion_tokens == 3  # counted, where the server does not tell


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["data: not json"], "not JSON"),
        (["data: [1]"], "unknown form"),
        ([chunk("a"), 'data: {"error": {"message": "out of \\u001b[2J memory"}}'], "out of ␛[2J memory"),
        ([chunk("a")], "without saying why"),
        (["data: " + "[" * 100_000], "not JSON"),
    ],
)
def test_broken_answers_are_told(endpoint: Endpoint, lines: list[str | float], message: str) -> None:
    endpoint.lines = lines
    with pytest.raises(ExecutionError, match=message.replace("[", r"\[")):
        answer(RemoteBackend(endpoint.url, "first"))


@pytest.mark.parametrize(
    ("status", "body", "kind", "message"),
    [
        (401, b'{"error": {"message": "bad key"}}', RequestError, "refuses the key: bad key"),
        (404, b'{"error": {"message": "no such model"}}', RequestError, "no such model"),
        (400, b"plain text", RequestError, "plain text"),
        (500, b"<html>", ExecutionError, "status 500"),
        (503, b"\xff\x1b[2J", ExecutionError, "status 503"),
    ],
)
def test_refusals(endpoint: Endpoint, status: int, body: bytes, kind: type[LocalLLMError], message: str) -> None:
    endpoint.status, endpoint.body = status, body
    for attempt in (lambda: answer(RemoteBackend(endpoint.url, "first")), RemoteBackend(endpoint.url).models):
        with pytest.raises(kind, match=message) as caught:
            attempt()
        assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize(
    ("lines", "moment"), [([30.0], "before the first byte"), ([chunk("one"), 30.0], "in mid-stream")]
)  # fmt: skip
def test_a_stop_drops_the_connection_at_once(endpoint: Endpoint, lines: list[str | float], moment: str) -> None:
    endpoint.lines = lines
    backend = RemoteBackend(endpoint.url, "first")
    found: list[Event] = []
    worker = threading.Thread(target=lambda: found.extend(backend.stream(MESSAGES, {})))
    worker.start()
    end = time.monotonic() + 60
    while (len(found) < len(lines) - 1 or not endpoint.seen) and time.monotonic() < end:
        time.sleep(0.01)
    backend.cancel()
    worker.join(60)
    assert not worker.is_alive(), moment
    assert endpoint.gone.wait(60), moment
    assert not any(isinstance(event, Finished) for event in found)


def test_a_server_that_dies_in_mid_answer_is_told_from_one_that_is_not_there(endpoint: Endpoint) -> None:
    endpoint.lines, endpoint.promised = [chunk("half")], 10_000
    events = RemoteBackend(endpoint.url, "first").stream(MESSAGES, {})
    assert isinstance(next(events), TextDelta)
    with pytest.raises(ExecutionError, match="broke in mid-answer") as caught:
        next(events)
    assert caught.value.hint == "continue it, or ask again"


def test_addresses_and_servers_that_cannot_work(endpoint: Endpoint) -> None:
    for url in ("nonsense", "ftp://host/v1", "http:///v1"):
        with pytest.raises(ConfigurationError, match="no address of a server"):
            RemoteBackend(url)
    with pytest.raises(ExecutionError, match="no answer from"):
        RemoteBackend("http://127.0.0.1:9/v1").models()
    load: Callable[[RemoteBackend], None] = lambda backend: backend.load(lambda _: None)  # noqa: E731
    with pytest.raises(RequestError, match="has no model 'third'"):
        load(RemoteBackend(endpoint.url, "third"))
    wrong: tuple[Any, ...] = ([], {"data": 5}, {})
    for models in wrong:
        endpoint.models = models
        with pytest.raises(ExecutionError, match="does not answer like an OpenAI server"):
            load(RemoteBackend(endpoint.url))
    endpoint.models = {"data": []}
    with pytest.raises(ExecutionError, match="lists no models"):
        load(RemoteBackend(endpoint.url))

"""Clients that go away in every phase: the engine stops, pages come back, the next request starts at once."""

from __future__ import annotations

import contextlib
import gc
import json
import random
import socket
import threading
import time
from typing import Any

import pytest
from running_server import Running, Serve, wait_until

from localllm.engine import Generation
from localllm.engine.job import Job
from localllm.server.stream import EventStream
from localllm.server.work import Work


def send(server: Running, body: dict[str, Any], path: str = "/v1/chat/completions") -> socket.socket:
    """A request on a connection of its own, which the caller closes when it likes."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(data)}\r\n\r\n"
    connection = socket.create_connection(server.address, timeout=60)
    connection.sendall(head.encode() + data)
    return connection


def asking(stream: bool, text: str = "hello", **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], "stream": stream, **fields}


def nothing_runs(server: Running) -> bool:
    usage = server.model.engine.usage()
    return server.active == 0 and usage.running == usage.waiting == 0 and usage.pages.held == 0


def cancelled(server: Running) -> float:
    lines = server.get("/metrics").text.splitlines()
    return float(next(line for line in lines if line.startswith("localllm_cancelled_total")).split()[1])


def remains() -> int:
    """Objects of requests that are still in memory."""
    gc.collect()
    kinds = (Generation, Job, Work, EventStream)  # isinstance would wake the warnings of other libraries' objects
    return sum(issubclass(type(each), kinds) for each in gc.get_objects())


@pytest.mark.parametrize("stream", [False, True])
def test_before_the_first_token(serve: Serve, stream: bool) -> None:
    """In the middle of reading the prompt: no more than the step that runs is finished."""
    server = serve()
    executor = server.model.executor
    executor.gate.clear()
    connection = send(server, asking(stream, "x" * 400))
    wait_until(lambda: server.model.engine.usage().running == 1)
    connection.close()
    wait_until(lambda: server.active == 0)
    executor.gate.set()
    wait_until(lambda: nothing_runs(server))
    assert len(executor.steps) <= 2
    assert cancelled(server) == 1
    executor.say("next")
    assert server.chat().json()["choices"][0]["message"]["content"] == "next"


@pytest.mark.parametrize("stream", [False, True])
def test_in_the_middle_of_the_answer(serve: Serve, stream: bool) -> None:
    server = serve(model={"context": 4096})
    executor = server.model.executor
    executor.say("x" * 3000)
    executor.delay = 0.005
    connection = send(server, asking(stream))
    if stream:
        received = b""
        while received.count(b"data:") < 5:
            received += connection.recv(1000)
    else:
        wait_until(lambda: len(executor.steps) > 5)
    connection.close()
    wait_until(lambda: nothing_runs(server))
    assert len(executor.steps) < 1500  # of 3000
    assert cancelled(server) == 1


def test_while_it_waits_for_a_slot(serve: Serve) -> None:
    server = serve(model={"parallel": 1})
    executor = server.model.executor
    executor.say("x" * 100)
    executor.gate.clear()
    first = send(server, asking(True))
    wait_until(lambda: server.model.engine.usage().running == 1)
    second = send(server, asking(False, "never to be seen"))
    wait_until(lambda: server.model.engine.usage().waiting == 1)
    second.close()
    wait_until(lambda: server.active == 1)
    executor.gate.set()
    received = b""
    while b"[DONE]" not in received:
        received += first.recv(10000)
    first.close()
    wait_until(lambda: nothing_runs(server))
    rows = sum(len(step.tokens) for step in executor.steps)
    assert rows < 300
    assert all(ord("v") not in step.tokens.tolist() for step in executor.steps)  # of "never"


def test_while_the_model_is_loaded(serve: Serve) -> None:
    from scripted_model import ScriptedModel

    ready = threading.Event()

    def load() -> ScriptedModel:
        ready.wait(60)
        return ScriptedModel()

    server = serve(load=load)
    assert server.get("/health").json()["status"] == "loading"
    assert server.get("/health").status_code == 503
    connection = send(server, asking(False))
    wait_until(lambda: server.active == 1)
    connection.close()
    wait_until(lambda: server.active == 0)
    ready.set()
    assert server.chat(max_tokens=1).status_code == 200
    assert len(server.model.executor.steps) > 0


def test_in_the_middle_of_the_body(serve: Serve) -> None:
    server = serve()
    for cut in (10, 150, 190):
        data = json.dumps(asking(False)).encode()
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        with socket.create_connection(server.address, timeout=60) as connection:
            connection.sendall((head.encode() + data)[:cut])
    assert server.chat(max_tokens=1).status_code == 200
    assert nothing_runs(server)
    wait_until(lambda: cancelled(server) == 2)  # the first one did not even send its headers
    assert 'status="500"' not in server.get("/metrics").text


def test_a_reader_that_does_not_read(serve: Serve) -> None:
    """Its answer is finished (and bounded by max_tokens); nobody else waits for it."""
    server = serve(model={"context": 4096, "parallel": 2})
    server.model.executor.say("x" * 3000)
    connection = send(server, asking(True, max_tokens=3000))
    time.sleep(0.1)
    server.model.executor.say("y")
    assert server.chat("another", max_tokens=2).status_code == 200
    connection.close()
    wait_until(lambda: nothing_runs(server))


def test_a_long_wait_is_filled_with_comments(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that nothing on the way takes the connection for dead."""
    monkeypatch.setattr("localllm.server.stream.PING_SECONDS", 0.05)
    server = serve()
    server.model.executor.say("late")
    server.model.executor.gate.clear()
    connection = send(server, asking(True))
    received = b""
    while received.count(b": working\n\n") < 3:
        received += connection.recv(1000)
    server.model.executor.gate.set()
    while b"[DONE]" not in received:
        received += connection.recv(1000)
    connection.close()
    assert received.count(b"data: {") >= 5


def test_several_answers_are_all_cancelled(serve: Serve) -> None:
    server = serve(model={"context": 4096})
    server.model.executor.delay = 0.005
    body = {"model": "m", "prompt": ["one", "two", "three"], "n": 2, "max_tokens": 3000, "stream": True}
    connection = send(server, body, "/v1/completions")
    connection.recv(1000)
    connection.close()
    wait_until(lambda: nothing_runs(server))
    assert len(server.model.executor.steps) < 1500


def test_a_thousand_requests_of_all_kinds(serve: Serve) -> None:
    """Random cancels, bad bodies, over-long prompts: no fault, no page, no thread, nothing of a request is left."""
    server = serve(model={"context": 256, "parallel": 3})
    chance = random.Random(1)
    statuses: list[int] = []
    server.chat(max_tokens=1)
    threads, held = threading.active_count(), remains()

    def client(number: int) -> None:
        mine = random.Random(number)
        for _ in range(125):
            kind = mine.choice(("cancel", "cancel", "half", "whole", "stream", "bad", "long", "completions", "rubbish"))
            fields = {"max_tokens": mine.randint(1, 30), "seed": mine.randint(0, 9)}
            if kind == "cancel":
                connection = send(server, asking(mine.random() < 0.5, "x" * mine.randint(1, 150), **fields))
                time.sleep(mine.random() * 0.02)
                connection.close()
                continue
            if kind == "half":
                head = "POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                with contextlib.suppress(OSError), socket.create_connection(server.address, timeout=60) as connection:
                    connection.sendall(f'{head}Content-Length: 99\r\n\r\n{{"model": '.encode())
                continue
            if kind == "rubbish":
                with contextlib.suppress(OSError), socket.create_connection(server.address, timeout=60) as connection:
                    connection.sendall(mine.randbytes(mine.randint(1, 100)))
                continue
            if kind == "whole":
                response = server.chat("hello" * mine.randint(1, 5), n=mine.randint(1, 3), **fields)
            elif kind == "stream":
                response = server.chat("hello", stream=True, **fields)
            elif kind == "completions":
                response = server.complete(["a", "bc"], echo=True, logprobs=1, **fields)
            elif kind == "long":
                response = server.chat("x" * 300, stream=mine.random() < 0.5, **fields)
            else:
                response = server.post("/v1/chat/completions", mine.choice((b"{", b"[]", b'{"model": "m"}', b"")))
            statuses.append(response.status_code)

    clients = [threading.Thread(target=client, args=(chance.randint(0, 10**9),)) for _ in range(8)]
    for one in clients:
        one.start()
    for one in clients:
        one.join(120)
        assert not one.is_alive()
    assert set(statuses) == {200, 400}
    assert 'status="500"' not in server.get("/metrics").text  # of those who went away neither
    wait_until(lambda: nothing_runs(server))
    assert threading.active_count() <= threads + 8  # helpers of the event loop's pool
    wait_until(lambda: remains() <= held)
    assert server.chat(max_tokens=1).status_code == 200

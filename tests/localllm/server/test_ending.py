"""The end of a server: answers that run are finished, new requests are told to come later."""

from __future__ import annotations

import json
import socket
import threading

import pytest
from running_server import Running, Serve, error_of, wait_until
from scripted_model import ScriptedModel

from .test_leaving import asking, send


def test_running_answers_finish_and_new_ones_are_refused(serve: Serve) -> None:
    server = serve(model={"context": 4096})
    executor = server.model.executor
    executor.say("x" * 300)
    executor.delay = 0.002
    streaming, whole = send(server, asking(True)), send(server, asking(False, "other"))
    wait_until(lambda: server.model.engine.usage().running == 2)
    server.server.handle_exit(15, None)
    wait_until(lambda: server.server.service.draining)
    refused = server.chat()
    assert error_of(refused, 503)["code"] == "draining"
    assert refused.headers["retry-after"]
    health = server.get("/health")
    assert (health.status_code, health.json()["status"]) == (503, "draining")
    executor.delay = 0
    received = b""
    while data := streaming.recv(100_000):
        received += data
        if b"[DONE]" in received:
            break
    texts = [json.loads(line[6:]) for line in received.decode().split("\r\n") if line.startswith("data: {")]
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in texts) == "x" * 300
    assert texts[-1]["choices"][0]["finish_reason"] == "stop"
    reply = b""
    while data := whole.recv(100_000):
        reply += data
    assert b'"finish_reason":"stop"' in reply
    server.thread.join(60)
    assert not server.thread.is_alive()
    streaming.close()
    whole.close()


def _all_of(connection: socket.socket) -> str:
    received = b""
    while data := connection.recv(100_000):
        received += data
    connection.close()
    return received.decode()


@pytest.mark.parametrize(("seconds", "signals"), [(0.2, 1), (600.0, 2)])
def test_answers_that_take_too_long_are_cut_and_their_clients_are_told(
    serve: Serve, caplog: pytest.LogCaptureFixture, seconds: float, signals: int
) -> None:
    """At the limit, or at a second signal: an error object, in a stream an error event and the end."""
    caplog.set_level("INFO", "localllm.server")
    server = serve(model={"context": 100_000}, drain_seconds=seconds)
    server.model.executor.say("x" * 50_000)
    server.model.executor.delay = 0.01
    streaming, whole = send(server, asking(True)), send(server, asking(False, "other"))
    wait_until(lambda: server.model.engine.usage().running == 2)
    for _ in range(signals):
        server.server.handle_exit(15, None)
    head, _, body = _all_of(whole).partition("\r\n\r\n")
    assert head.startswith("HTTP/1.1 503")
    assert json.loads(body)["error"]["code"] == "draining"
    events = [line for line in _all_of(streaming).split("\r\n") if line.startswith("data: ")]
    events = [event.removeprefix("data: ").strip() for event in events]
    assert events[-1] == "[DONE]"
    assert json.loads(events[-2])["error"]["code"] == "draining"
    server.thread.join(60)
    assert not server.thread.is_alive()
    assert server.model.closed
    lines = [record.getMessage().split() for record in caplog.records]
    statuses = [line[-2] for line in lines if "/v1/chat/completions" in line]
    assert sorted(statuses) == ["200", "503"]


def test_a_model_that_is_loading_holds_no_client_at_the_end(serve: Serve) -> None:
    ready = threading.Event()

    def load() -> ScriptedModel:
        ready.wait(60)
        return ScriptedModel()

    server = serve(load=load, drain_seconds=0.1)
    connection = send(server, asking(False))
    wait_until(lambda: server.active == 1)
    server.server.handle_exit(15, None)
    assert '"draining"' in _all_of(connection)
    ready.set()
    server.thread.join(60)
    assert not server.thread.is_alive()


def test_too_many_requests(serve: Serve) -> None:
    server = serve(most_waiting=2)
    server.model.executor.gate.clear()
    connections = [send(server, asking(False)) for _ in range(2)]
    wait_until(lambda: server.active == 2)
    response = server.chat()
    assert error_of(response, 503)["code"] == "overloaded"
    assert response.headers["retry-after"]
    for connection in connections:
        connection.close()
    wait_until(lambda: server.active == 0)


def _loads(server: Running) -> int:
    return len(server.models)


def test_idle_models_are_unloaded(serve: Serve) -> None:
    server = serve(pool={"keep_alive": 0.2})
    first = server.model
    wait_until(lambda: first.closed)
    assert server.get("/v1/models").json()["data"][0]["state"] == "unloaded"
    assert server.get("/health").status_code == 200
    assert server.chat(max_tokens=1).status_code == 200
    assert _loads(server) == 2


def test_a_model_in_use_is_not_unloaded(serve: Serve) -> None:
    server = serve(pool={"keep_alive": 0.1}, model={"context": 4096})
    server.model.executor.say("x" * 60)
    server.model.executor.delay = 0.01
    assert server.chat().json()["choices"][0]["message"]["content"] == "x" * 60
    assert _loads(server) == 1


def test_two_models_in_room_for_one(serve: Serve) -> None:
    server = serve(names=("one", "two"), pool={"memory": 1500})
    for number, name in enumerate(("one", "two", "one", "one", "two")):
        reply = server.chat(model=name, max_tokens=1).json()
        assert reply["model"] == name, number
    assert _loads(server) == 4
    assert [model.closed for model in server.models] == [True, True, True, False]


def test_a_model_waits_until_another_is_free(serve: Serve) -> None:
    server = serve(names=("one", "two"), pool={"memory": 1500})
    server.model.executor.gate.clear()
    waiting = send(server, asking(False) | {"model": "one"})
    wait_until(lambda: server.model.engine.usage().running == 1)
    replies: list[int] = []
    other = threading.Thread(target=lambda: replies.append(server.chat(model="two", max_tokens=1).status_code))
    other.start()
    wait_until(lambda: server.active == 2)
    assert _loads(server) == 1
    waiting.close()
    server.model.executor.gate.set()
    other.join(60)
    assert replies == [200]


def test_a_model_that_can_never_fit(serve: Serve) -> None:
    server = serve(pool={"memory": 500})
    error = error_of(server.chat(), 503)
    assert error["code"] == "out_of_memory"
    assert "1000" in error["message"]
    assert "500" in error["message"]


class Larger(ScriptedModel):
    """Takes more than its file."""

    size = 1200


def test_what_a_model_really_takes_counts(serve: Serve) -> None:
    """The first two were thought to fit beside each other."""
    server = serve(names=("one", "two"), pool={"memory": 2200}, load=Larger)
    for name in ("one", "two", "one"):
        assert server.chat(model=name, max_tokens=1).status_code == 200
    assert [model.closed for model in server.models] == [True, True, False]
    sizes = {model["id"]: model["size_bytes"] for model in server.get("/v1/models").json()["data"]}
    assert sizes == {"one": 1200, "two": 1200}


def test_a_model_that_turns_out_too_large_is_closed(serve: Serve) -> None:
    server = serve(pool={"memory": 1100}, load=Larger)
    assert "1200" in error_of(server.chat(), 503)["message"]
    assert all(model.closed for model in server.models)


def test_models_share_when_there_is_room(serve: Serve) -> None:
    server = serve(names=("one", "two"), pool={"memory": 2000})
    for name in ("one", "two", "one", "two"):
        assert server.chat(model=name, max_tokens=1).status_code == 200
    assert _loads(server) == 2


def test_a_dead_engine_is_replaced(serve: Serve) -> None:
    """A fault in an executor ends the engine; the next request gets a new one."""
    server = serve()
    first = server.model

    def fail(step: object) -> None:
        raise RuntimeError("the device is gone")

    first.executor.forward = fail  # type: ignore[method-assign,assignment]
    error = error_of(server.chat(), 500)
    assert "Traceback" not in error["message"]
    wait_until(lambda: first.engine.failure is not None)
    assert server.chat(max_tokens=1).status_code == 200
    assert _loads(server) == 2
    server.models.remove(first)  # its pages died with it


def test_loading_once_for_many(serve: Serve) -> None:
    ready = threading.Event()

    def load() -> ScriptedModel:
        ready.wait(60)
        return ScriptedModel()

    server = serve(load=load)
    replies: list[int] = []
    threads = [threading.Thread(target=lambda: replies.append(server.chat(max_tokens=1).status_code)) for _ in range(5)]
    for thread in threads:
        thread.start()
    wait_until(lambda: server.active == 5)
    ready.set()
    for thread in threads:
        thread.join(60)
    assert replies == [200] * 5
    assert _loads(server) == 1

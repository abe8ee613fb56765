"""A real server on a real port, with models that say what a test wants."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx2
import openai
from scripted_model import ScriptedModel

from localllm.server.options import ServerOptions
from localllm.server.pool import ModelPool, ModelSource
from localllm.server.running import Server


@dataclass
class Running:
    """A server in a thread. `model` is its first loaded model."""

    server: Server
    thread: threading.Thread
    address: tuple[str, int]
    models: list[ScriptedModel]
    client: httpx2.Client = field(default_factory=lambda: httpx2.Client(verify=False, timeout=60))

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.address[1]}"

    @property
    def model(self) -> ScriptedModel:
        """The model that was loaded first, once it is."""
        deadline = time.monotonic() + 60
        while not self.models and time.monotonic() < deadline:
            time.sleep(0.005)
        return self.models[0]

    @property
    def active(self) -> int:
        """Requests that are being answered."""
        return self.server.service.active

    @property
    def openai(self) -> openai.OpenAI:
        """The official client, as a user makes it."""
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=60)

    def post(self, path: str, body: Any, **headers: str) -> httpx2.Response:
        """POST JSON, or bytes as they are."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = {
            "content-type": "application/json",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        return self.client.post(self.url + path, content=data, headers=sent)

    def get(self, path: str, **headers: str) -> httpx2.Response:
        """GET."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.client.get(self.url + path, headers=sent)

    def chat(self, text: str = "hello", /, **fields: Any) -> httpx2.Response:
        """A chat completion of one message."""
        return self.post(
            "/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": text}], **fields}
        )

    def complete(self, prompt: Any = "hello", /, **fields: Any) -> httpx2.Response:
        """A plain completion."""
        return self.post("/v1/completions", {"model": "m", "prompt": prompt, **fields})

    def stream(self, path: str, body: dict[str, Any]) -> list[str]:
        """The data of all events, in order."""
        response = self.post(path, {**body, "stream": True})
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = response.text.split("\n\n")
        assert lines.pop() == ""
        return [line.removeprefix("data: ") for line in lines if not line.startswith(":")]

    def chat_stream(self, text: str = "hello", /, **fields: Any) -> list[dict[str, Any]]:
        """The chunks of a streamed chat completion, which must end with [DONE]."""
        body = {"model": "m", "messages": [{"role": "user", "content": text}], **fields}
        data = self.stream("/v1/chat/completions", body)
        assert data.pop() == "[DONE]"
        return [json.loads(item) for item in data]

    def stop(self) -> None:
        """End it as SIGTERM would."""
        self.client.close()
        for model in self.models:
            model.executor.gate.set()
        self.server.handle_exit(15, None)
        self.thread.join(60)
        assert not self.thread.is_alive()


Serve = Callable[..., Running]


def start_server(
    *,
    names: tuple[str, ...] = ("m",),
    load: Callable[[], ScriptedModel] | None = None,
    model: dict[str, Any] | None = None,
    pool: dict[str, Any] | None = None,
    sampling: dict[str, Any] | None = None,
    **options: Any,
) -> Running:
    """A server that listens. `load` makes its models, by default scripted ones with the keywords `model`."""
    models: list[ScriptedModel] = []

    def load_model() -> ScriptedModel:
        made = ScriptedModel(**(model or {})) if load is None else load()
        models.append(made)
        return made

    sources = [ModelSource(name, load_model, size_bytes=1000, created=7, sampling=sampling or {}) for name in names]
    listening = threading.Event()
    addresses: list[tuple[str, int]] = []

    def started_at(host: str, port: int) -> None:
        addresses.append((host, port))
        listening.set()

    server_options = ServerOptions(**{"port": 0, "drain_seconds": 10.0, **options})
    server = Server(lambda: ModelPool(sources, **(pool or {})), server_options, started_at)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), name="server")
    thread.start()
    assert listening.wait(60)
    return Running(server, thread, addresses[0], models)


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Until it is true; a failure when that takes too long."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


def error_of(response: Any, status: int = 400) -> dict[str, Any]:
    """The error object, which must be whole."""
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert "Traceback" not in response.text
    assert "/home" not in response.text
    return error

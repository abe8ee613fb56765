"""Requests of all kinds of nonsense to a real server: never a status of 500, always an error that says why."""

from __future__ import annotations

import atexit
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import httpx2
from fuzz_templates import TEXTS, conversation, value

PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/tokenize", "/detokenize")
PATHS += ("/apply-template",)
OTHER = ("/health", "/metrics", "/v1/models", "/v1/models/x", "/openapi.json", "/", "/v1", "/%00", "/../etc/passwd")
GOOD = (200, 204, 400, 401, 404, 405, 408, 411, 413, 414, 415, 422, 429, 431, 501, 503)
RAW = (
    b"GET / HTTP/1.1\r\n\r\n",
    b"POST /v1/completions HTTP/9.9\r\nHost: a\r\n\r\n",
    b"\x00" * 50,
    b"GET " + b"a" * 70000,
)


def body_of(choice: Random, path: str, model: str, fields: dict[str, list[str]]) -> Any:
    """A request that is nearly right."""
    body: dict[str, Any] = {"model": model, "max_tokens": choice.choice((0, 1, 3))}
    if path.startswith("/v1/chat") or path == "/apply-template":
        body["messages"] = conversation(choice)
    elif path == "/v1/completions":
        body["prompt"] = choice.choice(("hello", ["a", "b"], [1, 2, 3], [[1], [2]], "", value(choice)))
    elif path == "/v1/responses":
        body["input"] = choice.choice(("hello", conversation(choice), value(choice)))
        body["max_output_tokens"] = body.pop("max_tokens")
    else:
        body = {
            "model": model,
            choice.choice(("input", "content", "tokens")): choice.choice(("hello", [1], value(choice))),
        }
    for _ in range(choice.choice((0, 0, 1, 1, 2, 5))):
        body[choice.choice(fields[path])] = choice.choice((1, 0.5, True, "auto", value(choice), list(TEXTS)))
    return body if choice.random() < 0.95 else value(choice)


def start(model: str, log: Path) -> str:
    """The address of a new server, which ends with this process."""
    command = [sys.executable, "-m", "localllm", "serve", model, "--port", "0", "--threads", "1", "--context", "128"]
    with log.open("w", encoding="utf-8") as file:  # a pipe that nobody reads would fill up
        server = subprocess.Popen(command, stderr=file)
    atexit.register(server.kill)
    address = None
    while address is None and server.poll() is None:
        time.sleep(0.1)
        words = log.read_text(encoding="utf-8").split()
        address = next((word for word in words if word.startswith("http://")), None)
    if address is None:
        raise SystemExit(log.read_text(encoding="utf-8"))
    while httpx2.get(f"{address}/health").status_code != 200:
        time.sleep(0.1)
    return address


def make_case(target: str) -> Callable[[Random, Path], None]:
    """A case is one request; what the server answers must be an answer or one of its errors."""
    address = start(target, Path(tempfile.mkdtemp()) / "server.log")
    http = httpx2.Client(base_url=address, timeout=25)
    model = http.get("/v1/models").json()["data"][0]["id"]
    described = http.get("/openapi.json").json()
    fields = {path: sorted(_properties(described, path)) for path in PATHS}
    host, port = address.removeprefix("http://").split(":")

    def case(choice: Random, keep: Path) -> None:
        what = choice.randrange(20)
        if what == 0:
            with socket.create_connection((host, int(port)), timeout=20) as connection:
                connection.sendall(choice.choice((*RAW, choice.randbytes(100))))
                connection.shutdown(socket.SHUT_WR)
                connection.recv(1000)
            return
        if what == 1:
            method = choice.choice(("GET", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH", "POST"))
            response = http.request(method, choice.choice(PATHS + OTHER))
        else:
            path = choice.choice(PATHS)
            content = json.dumps(body_of(choice, path, model, fields)).encode()
            if choice.random() < 0.1:
                at = choice.randrange(len(content))
                content = content[:at] + choice.randbytes(choice.randrange(4)) + content[at + choice.randrange(3) :]
            (keep / "case.bin").write_bytes(path.encode() + b"\n" + content)
            kind = "application/json" if choice.random() < 0.95 else choice.choice(("text/plain", "", "a/b; charset=x"))
            response = http.post(path, content=content, headers={"content-type": kind})
        if response.status_code not in GOOD:
            raise ValueError(f"status {response.status_code}: {response.text[:300]}")
        if "Traceback" in response.text:
            raise ValueError("a traceback")
        if response.status_code == 400 and not response.json()["error"]["message"]:
            raise ValueError("an error without words")

    return case


def _properties(described: dict[str, Any], path: str) -> list[str]:
    schema = described["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    while "$ref" in schema:
        schema = described["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return list(schema["properties"])

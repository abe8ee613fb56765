"""A real model behind the real command: killed and started again, ended by SIGTERM, scored, many at once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import platform
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from running_server import wait_until

pytestmark = pytest.mark.real_model

PROMPTS = [f"Tell me something about the number {number}." for number in range(8)]


class Process:
    """`localllm serve` as a user runs it, on a free port."""

    def __init__(self, model: Path, *options: str) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        command = [sys.executable, "-m", "localllm", "serve", str(model), "--port", "0", "--context", "2048", *options]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
        assert found, line
        self.url = found[0]
        self.name = model.stem
        self.client = httpx2.Client(base_url=self.url, timeout=120, verify=False)

    def chat(self, text: str, **fields: Any) -> dict[str, Any]:
        body = {"model": self.name, "messages": [{"role": "user", "content": text}], **fields}
        response = self.client.post("/v1/chat/completions", json=body)
        assert response.status_code == 200, response.text
        reply: dict[str, Any] = response.json()
        return reply

    def cached_pages(self) -> int:
        """Pages that the KV cache keeps for later prompts."""
        lines = self.client.get("/metrics").text.splitlines()
        return int(
            float(next(line for line in lines if "localllm_kv_pages" in line and '"cached"' in line).split()[-1])
        )

    def resident(self) -> float:
        """MiB in memory that belong to no file."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("RssAnon"))

    def end(self, number: signal.Signals) -> str:
        """Send a signal; returns the log."""
        self.process.send_signal(number)
        _, log = self.process.communicate(timeout=60)
        self.client.close()
        return log


@pytest.fixture(scope="module")
def server(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setenv("LOCALLLM_HOME", str(tmp_path_factory.mktemp("home")))
    one = Process(smollm2_path, "--parallel", "8", "--keep-cache", "4")
    yield one
    if one.process.poll() is None:
        one.end(signal.SIGTERM)
    monkeypatch.undo()


def test_an_answer(server: Process) -> None:
    reply = server.chat("What is the capital of France?", temperature=0, max_tokens=16)
    assert "Paris" in reply["choices"][0]["message"]["content"]


def test_scores_equal_a_direct_forward_pass(server: Process, smollm2_path: Path) -> None:
    """As evaluation harnesses ask: echo, logprobs, one more token."""
    from localllm import LLM

    text = "The quick brown fox jumps over the lazy dog. It was the best of times, it was the worst of times."
    with LLM(smollm2_path, context=2048) as llm:
        ids = llm.tokenizer.encode_prompt(text)
        logits = llm.logits(ids).astype(np.float64)
    rows = logits[:-1] - logits[:-1].max(axis=1, keepdims=True)
    expected = rows[np.arange(len(ids) - 1), ids[1:]] - np.log(np.exp(rows).sum(axis=1))
    body = {"model": server.name, "prompt": [ids], "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}
    scored = server.client.post("/v1/completions", json=body).json()["choices"][0]["logprobs"]
    np.testing.assert_allclose(scored["token_logprobs"][1 : len(ids)], expected, atol=1e-4)
    assert math.isfinite(scored["token_logprobs"][-1])


def test_answers_at_once_are_those_alone(server: Process) -> None:
    def fields(number: int) -> dict[str, Any]:
        return {"seed": number, "temperature": 0.8, "max_tokens": 24}

    alone = [server.chat(prompt, **fields(n))["choices"][0]["message"]["content"] for n, prompt in enumerate(PROMPTS)]

    async def together() -> list[str]:
        async with httpx2.AsyncClient(base_url=server.url, timeout=120, verify=False) as client:

            async def one(number: int, prompt: str) -> str:
                body = {"model": server.name, "messages": [{"role": "user", "content": prompt}], **fields(number)}
                reply = await client.post("/v1/chat/completions", json=body)
                return str(reply.json()["choices"][0]["message"]["content"])

            return await asyncio.gather(*(one(number, prompt) for number, prompt in enumerate(PROMPTS)))

    assert asyncio.run(together()) == alone
    assert len(set(alone)) > 1


def test_json_of_a_real_model(server: Process) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "large": {"type": "boolean"}},
        "required": ["city", "large"],
        "additionalProperties": False,
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    reply = server.chat("Describe Paris.", response_format=wanted, temperature=0, max_tokens=100)
    value = json.loads(reply["choices"][0]["message"]["content"])
    assert set(value) == {"city", "large"}
    tools = [{"type": "function", "function": {"name": "weather", "parameters": schema}}]
    called = server.chat("Weather?", tools=tools, tool_choice="required", parallel_tool_calls=False, max_tokens=200)
    (call,) = called["choices"][0]["message"]["tool_calls"]
    assert set(json.loads(call["function"]["arguments"])) == {"city", "large"}


def one_of_many(server: Process, chance: random.Random) -> None:
    """A request of some kind: answered, left, refused, or no request at all."""
    kind = chance.choice(("chat", "stream", "leave", "scores", "vector", "schema", "long", "bad", "rubbish"))
    text = " ".join(str(chance.randint(0, 10**6)) for _ in range(chance.randint(1, 12)))
    body = {"model": server.name, "messages": [{"role": "user", "content": text}], "max_tokens": chance.randint(1, 4)}
    path = "/v1/chat/completions"
    if kind == "leave":
        limit = httpx2.Timeout(60, read=chance.random() / 20)
        with contextlib.suppress(httpx2.TimeoutException):
            server.client.post(path, json=body | {"max_tokens": 200}, timeout=limit)
        return
    if kind == "rubbish":
        with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=60) as connection:
            connection.sendall(chance.randbytes(40))
        return
    if kind == "stream":
        body |= {"stream": True, "n": 2}
    elif kind == "schema":
        schema = {"type": "object", "properties": {f"k{chance.randint(0, 99)}": {"type": "integer"}}}
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    elif kind == "long":
        body["messages"] = [{"role": "user", "content": "word " * 2500}]
    elif kind == "bad":
        body["temperature"] = "hot"
    elif kind == "scores":
        path, body = "/v1/completions", {"model": server.name, "prompt": [text] * 2, "echo": True, "logprobs": 1}
    elif kind == "vector":
        path, body = "/v1/embeddings", {"model": server.name, "input": text}
    assert server.client.post(path, json=body).status_code in (200, 400)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library keeps house in another way")
def test_memory_comes_back_after_requests_of_all_kinds(server: Process) -> None:
    """Rounds of requests reach a plateau and stay there, which rare kinds may lift once, and the KV cache goes."""
    chance = random.Random(1)
    levels = [server.resident()]
    flat = 0
    while flat < 4:
        with ThreadPoolExecutor(8) as clients:
            for done in [clients.submit(one_of_many, server, random.Random(chance.random())) for _ in range(24)]:
                done.result()
        wait_until(lambda: server.cached_pages() == 0)
        end = time.monotonic() + 8  # an idle server has given memory back by then
        while server.resident() > levels[-1] + 8 and time.monotonic() < end:
            time.sleep(0.2)
        flat = flat + 1 if server.resident() <= levels[-1] + 8 else 0
        if not flat:
            levels.append(server.resident())
        assert len(levels) < 12, f"memory grows round by round (MB): {levels}"
    assert 'status="500"' not in server.client.get("/metrics").text


def test_killed_in_the_middle_and_started_again(server: Process, smollm2_path: Path) -> None:
    """The last test of this module: it kills the module's server. The next one answers, then ends as it should."""
    body = {"model": server.name, "prompt": "Once upon a time", "max_tokens": 1500, "stream": True, "ignore_eos": True}
    with server.client.stream("POST", "/v1/completions", json=body) as response:
        lines = response.iter_lines()
        assert next(lines).startswith("data:")
        server.process.kill()
        with pytest.raises(httpx2.HTTPError):
            list(lines)
    server.end(signal.SIGKILL)
    again = Process(smollm2_path)
    with again.client.stream("POST", "/v1/completions", json={**body, "max_tokens": 100}) as response:
        lines = response.iter_lines()
        assert next(lines).startswith("data:")
        again.process.send_signal(signal.SIGTERM)

        def is_draining() -> bool:
            return bool(httpx2.get(f"{again.url}/health", verify=False).json()["status"] == "draining")

        wait_until(is_draining)
        refused = httpx2.post(f"{again.url}/v1/completions", json={**body, "stream": False}, verify=False)
        assert refused.status_code == 503
        assert [line for line in lines if line][-1] == "data: [DONE]"
    _, log = again.process.communicate(timeout=60)
    again.client.close()
    assert again.process.returncode == 0
    assert "Traceback" not in log
    assert "Once upon" not in log

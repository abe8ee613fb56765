"""Load on a running server, from a client's side: closed loop (so many clients) or open loop (so many a second)."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from localllm.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import httpx2

WORDS = ("river", "stone", "lamp", "green", "seven", "quiet", "engine", "paper", "north", "salt", "cloud", "iron")


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """`requests` a level, each with about `prompt_words` words and exactly `tokens` tokens to write."""

    url: str
    model: str
    api_key: str | None = None
    requests: int = 16
    prompt_words: int = 32
    tokens: int = 64
    seed: int = 0


@dataclass(frozen=True, slots=True)
class LoadResult:
    """One level: `clients` at a time, or `rate` a second. Times in seconds: medians, 95th percentiles, the longest."""

    clients: int | None
    rate: float | None
    requests: int
    failed: int
    seconds: float
    tokens_per_second: float
    first_token_median: float
    first_token_p95: float
    between_tokens_median: float
    between_tokens_p95: float
    between_tokens_longest: float


@dataclass(slots=True)
class _Seen:
    """What one request saw: its start, and when each chunk of text came."""

    start: float
    times: list[float] = field(default_factory=list)
    tokens: int = 0
    failed: bool = False
    error: str = ""  # what the server, or the way to it, said


class _Choice(msgspec.Struct):
    text: str = ""


class _Usage(msgspec.Struct):
    completion_tokens: int = 0


class _Chunk(msgspec.Struct):
    """What counts of a piece of a stream."""

    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


_ADDRESS = "The address is what the server says when it starts, such as http://127.0.0.1:8080."
_KEY = "A server that wants a key gets the one in LOCALLLM_API_KEY."
_MOST_ERROR_BYTES = 10_000
_CHUNK = msgspec.json.Decoder(_Chunk)


async def closed_loop(options: LoadOptions, clients: int) -> LoadResult:
    """`clients` that each send the next request as soon as the last one is answered."""
    seen: list[_Seen] = []
    prompts = iter(_prompts(options))
    async with _client(options) as client:
        started = time.perf_counter()

        async def work() -> None:
            for prompt in prompts:
                seen.append(await _ask(client, options, prompt))

        await asyncio.gather(*(work() for _ in range(clients)))
        return _result(seen, time.perf_counter() - started, clients=clients)


async def open_loop(options: LoadOptions, rate: float) -> LoadResult:
    """Requests that come by themselves, `rate` a second on average (exponential gaps), however slow the answers are."""
    chance = random.Random(options.seed)
    tasks = []
    async with _client(options) as client:
        started = time.perf_counter()
        for prompt in _prompts(options):
            tasks.append(asyncio.create_task(_ask(client, options, prompt)))
            await asyncio.sleep(chance.expovariate(rate))
        seen = await asyncio.gather(*tasks)
        return _result(seen, time.perf_counter() - started, rate=rate)


async def only_model(url: str, api_key: str | None) -> str:
    """The name of the server's model, where it has just one."""
    import httpx2

    try:
        async with _client(LoadOptions(url, "", api_key)) as client:
            response = await client.get("/v1/models")
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise RequestError(f"the server at {url} cannot be reached: {_said(error)}", hint=_ADDRESS) from None
    if response.status_code != 200:
        raise RequestError(f"the server at {url} says: {_told(response.status_code, response.content)}", hint=_KEY)
    try:
        names = [model.id for model in msgspec.json.decode(response.content, type=_Models).data]
    except msgspec.MsgspecError:
        raise RequestError(f"what answers at {url} is no such server", hint=_ADDRESS) from None
    if len(names) != 1:
        raise RequestError(f"name the model to measure; the server has: {', '.join(names) or 'none'}")
    return str(names[0])


def _client(options: LoadOptions) -> httpx2.AsyncClient:
    import httpx2

    headers = {} if options.api_key is None else {"Authorization": f"Bearer {options.api_key}"}
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    return httpx2.AsyncClient(base_url=options.url.rstrip("/"), headers=headers, timeout=600, limits=limits)


def _prompts(options: LoadOptions) -> list[str]:
    chance = random.Random(options.seed)
    return [" ".join(chance.choices(WORDS, k=options.prompt_words)) for _ in range(options.requests)]


async def _ask(client: httpx2.AsyncClient, options: LoadOptions, prompt: str) -> _Seen:
    body = {
        "model": options.model,
        "prompt": prompt,
        "max_tokens": options.tokens,
        "ignore_eos": True,
        "seed": 1,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    import httpx2

    seen = _Seen(time.perf_counter())
    try:
        async with client.stream("POST", "/v1/completions", json=body) as response:
            if response.status_code != 200:
                seen.failed = True
                said = b""
                async for data in response.aiter_bytes():
                    said += data[: _MOST_ERROR_BYTES - len(said)]
                seen.error = _told(response.status_code, said)
                return seen
            rest = b""
            async for data in response.aiter_raw():  # cheap, since the client takes time from the server beside it
                now = time.perf_counter()
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    if line.startswith(b"data: {"):
                        _read(seen, _CHUNK.decode(line[6:]), now)
    except (httpx2.HTTPError, httpx2.InvalidURL, msgspec.MsgspecError) as error:
        seen.failed, seen.error = True, _said(error)
    return seen


def _told(status: int, body: bytes) -> str:
    """A status, and the message of its error object when there is one."""
    try:
        error = msgspec.json.decode(body, type=_Chunk).error
    except (msgspec.MsgspecError, UnicodeDecodeError):
        error = None
    return f"{status}" if error is None else f"{status}, {_message(error)}"


def _message(error: Any) -> str:
    message = error.get("message", error) if isinstance(error, dict) else error
    return _plain(str(message))


def _said(error: Exception) -> str:
    return _plain(str(error) or type(error).__name__)


def _plain(text: str) -> str:
    """One line that a terminal can show, of a server that is not trusted."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:500])


def _read(seen: _Seen, chunk: _Chunk, now: float) -> None:
    if chunk.error is not None:
        seen.failed, seen.error = True, _message(chunk.error)
    elif chunk.choices and chunk.choices[0].text:
        seen.times.append(now)
    elif chunk.usage is not None:
        seen.tokens = chunk.usage.completion_tokens


def _result(
    seen: Sequence[_Seen], seconds: float, *, clients: int | None = None, rate: float | None = None
) -> LoadResult:
    good = [each for each in seen if not each.failed and each.times]
    if not good:
        error = next((each.error for each in seen if each.error), "the answers were empty")
        raise RequestError(f"no request was answered; the first error: {error}", hint=_KEY if "401" in error else None)
    first = [each.times[0] - each.start for each in good]
    gaps = np.concatenate([np.diff(each.times) for each in good])
    gaps = gaps if len(gaps) else np.zeros(1)
    return LoadResult(
        clients=clients,
        rate=rate,
        requests=len(seen),
        failed=len(seen) - len(good),
        seconds=seconds,
        tokens_per_second=sum(each.tokens for each in good) / seconds,
        first_token_median=float(np.median(first)),
        first_token_p95=float(np.percentile(first, 95)),
        between_tokens_median=float(np.median(gaps)),
        between_tokens_p95=float(np.percentile(gaps, 95)),
        between_tokens_longest=float(gaps.max()),
    )

"""Reads a request's body strictly: one JSON object, of limited size, depth and time, without what JSON forbids."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from starlette.requests import ClientDisconnect

from .errors import APIError, bad_request
from .stream import ClientGone

if TYPE_CHECKING:
    from starlette.requests import Request

MAX_DEPTH = 128


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """Bytes of a body, and seconds in which it must arrive."""

    size: int = 8 * 2**20
    seconds: float = 60.0


async def read_object(request: Request, limits: BodyLimits) -> dict[str, Any]:
    """The JSON object of a POST. APIError 400, 408, 413 or 415; ClientGone when the client left before it was whole."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise bad_request("the body must be JSON: send the header Content-Type: application/json", None, "content_type")
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise APIError(415, "the body must not be compressed", code="content_encoding")
    try:
        async with asyncio.timeout(limits.seconds):
            data = await _read(request, limits.size)
    except TimeoutError:
        message = f"the body did not arrive within {limits.seconds:g} seconds"
        raise APIError(408, message, code="body_timeout", headers={"Connection": "close"}) from None
    return parse_object(data)


async def _read(request: Request, size: int) -> bytes:
    chunks, total = [], 0
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > size:
        raise _too_large(size)
    try:
        async for chunk in request.stream():
            total += len(chunk)
            if total > size:
                raise _too_large(size)
            chunks.append(chunk)
    except ClientDisconnect:
        raise ClientGone from None
    return b"".join(chunks)


def _too_large(size: int) -> APIError:
    message = f"the body is larger than the {size} bytes that this server takes"
    return APIError(413, message, code="request_too_large", headers={"Connection": "close"})


def parse_object(data: bytes) -> dict[str, Any]:
    """The object that UTF-8 JSON holds; duplicate keys, NaN, Infinity and too deep nesting are refused."""
    if not data.strip():
        raise bad_request("the body is empty; it must be a JSON object", None, "invalid_json")
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise bad_request(f"the body is not UTF-8 (byte {error.start})", None, "invalid_json") from None
    except RecursionError:
        raise _too_deep() from None
    except json.JSONDecodeError as error:
        message = f"the body is not JSON: {error.msg} (line {error.lineno}, column {error.colno})"
        raise bad_request(message, None, "invalid_json") from None
    except ValueError:
        raise bad_request("the body holds a number with too many digits", None, "invalid_json") from None
    if not isinstance(value, dict):
        raise bad_request("the body must be a JSON object", None, "invalid_json")
    _check_depth(value)
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise bad_request(f"the key {twice[:60]!r} appears twice in one object", twice[:60], "invalid_json")
    return value


def _no_constant(name: str) -> NoReturn:
    raise bad_request(f"{name} is not JSON", None, "invalid_json")


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for item in level
            for child in (item.values() if isinstance(item, dict) else item)
            if isinstance(child, dict | list)
        ]
        if not level:
            return
    raise _too_deep()


def _too_deep() -> APIError:
    return bad_request(f"the body is nested deeper than {MAX_DEPTH} levels", None, "invalid_json")

"""What goes wrong with a server of another process, as errors for the person at the terminal."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from localllm.errors import ExecutionError, RequestError

from .visible import visible_line

if TYPE_CHECKING:
    from localllm.errors import LocalLLMError


def refused(status: int, body: bytes) -> LocalLLMError:
    """An answer with an error status; the body may be an OpenAI error object, or anything."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = body[:400].decode("utf-8", "replace")
    return reported(found.get("error", found) if isinstance(found, dict) else found, status)


def reported(error: Any, status: int | None = None) -> LocalLLMError:
    """An error object of a server, or a plain text; `status` None: it came in the middle of an answer."""
    message = error.get("message") if isinstance(error, dict) else error
    text = visible_line(str(message or "no reason given"), 400)
    if status in (401, 403):
        return RequestError(f"the server refuses the key: {text}", hint="set it: localllm config set api_key KEY")
    if status in (400, 404, 422):
        return RequestError(f"the server says: {text}")
    return ExecutionError(f"the server failed{'' if status is None else f' (status {status})'}: {text}")


def unreachable(url: str, error: Exception) -> ExecutionError:
    """No connection, or one that broke before the answer."""
    reason = visible_line(str(error) or type(error).__name__, 200)
    return ExecutionError(f"no answer from {url}: {reason}", hint="is the server running? localllm serve MODEL")


def broken_off(url: str, error: Exception) -> ExecutionError:
    """The connection broke in the middle of an answer."""
    reason = visible_line(str(error) or type(error).__name__, 200)
    return ExecutionError(f"the connection to {url} broke in mid-answer: {reason}", hint="continue it, or ask again")

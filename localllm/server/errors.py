"""Every failure as OpenAI's error object: `{"error": {"message", "type", "param", "code"}}` and a fitting status."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from localllm.errors import (
    ContextLengthError,
    ExecutionError,
    LocalLLMError,
    OutOfMemoryError,
    RequestError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


class APIError(Exception):
    """An answer other than 200. `message` is for the client and names neither paths nor internals."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        parameter: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.parameter = parameter
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """The error object."""
        return {
            "error": {"message": self.message, "type": self.kind, "param": self.parameter, "code": self.code},
        }


def bad_request(message: str, parameter: str | None = None, code: str | None = None) -> APIError:
    """400: the client must change its request."""
    return APIError(400, message, parameter=parameter, code=code)


def unavailable(message: str, code: str, retry_after: int = 1) -> APIError:
    """503: the same request may work later."""
    headers = {"Retry-After": str(retry_after)}
    return APIError(503, message, kind="server_error", code=code, headers=headers)


def shutting_down() -> APIError:
    """503: the server ends; another one may take its place."""
    return unavailable("the server is shutting down", "draining", 5)


def internal_error() -> APIError:
    """500: a fault of ours; what happened is in the log only."""
    return APIError(500, "the server failed on this request", kind="server_error", code="internal_error")


def from_library(error: LocalLLMError) -> APIError:
    """The answer to an error of the library: what the client caused is a 400, memory a 503, the rest a 500."""
    message = error.args[0] if error.args else "the request failed"
    hint = getattr(error, "hint", None)
    text = f"{message}. {hint}" if hint else str(message)
    if isinstance(error, ContextLengthError):
        return bad_request(text, error.parameter or "messages", "context_length_exceeded")
    if isinstance(error, RequestError):
        return bad_request(text, error.parameter, "invalid_value")
    if isinstance(error, OutOfMemoryError):
        return unavailable(text, "out_of_memory", 5)
    if isinstance(error, ExecutionError):
        return APIError(500, text, kind="server_error", code="generation_failed")
    return APIError(500, "the model could not be used; the server's log says why", kind="server_error", code="model")

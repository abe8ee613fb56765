"""What a client is told of an exception, and what the log keeps of it."""

from __future__ import annotations

import logging

from localllm.errors import LocalLLMError

from .errors import APIError, from_library, internal_error

log = logging.getLogger("localllm.server")


def failure_of(error: Exception, identity: str) -> APIError:
    """The answer for an exception; those that are faults of ours are logged whole."""
    if isinstance(error, APIError):
        return error
    if isinstance(error, LocalLLMError):
        log.warning("%s: %s", identity, str(error))  # the error itself would keep the request alive
        return from_library(error)
    log.error("%s failed", identity, exc_info=error)
    return internal_error()

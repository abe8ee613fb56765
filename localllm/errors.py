"""Every error that a user can see, in one tree.

LocalLLMError
├── GGUFError                   a model file that cannot be read
├── UnsupportedModelError       a readable file whose architecture or tensor type has no support
├── ModelNotFoundError          a name that is neither pulled, in the catalogue, nor a file
├── DownloadError               a transfer that failed; the partial file stays resumable
├── StoreError                 the model store on disk cannot be read or changed
├── ConfigurationError          a setting, flag or catalogue entry with a wrong value
├── RequestError                a request that can never work: parameter, template or message is wrong
│   └── ContextLengthError      prompt and answer do not fit into the context
├── SessionError                a saved KV cache that is damaged or belongs to something else
├── OutOfMemoryError            memory or VRAM does not suffice; says how much is missing
└── ExecutionError              the engine failed on one request (NaN logits, a dead worker)
"""

from __future__ import annotations

from localllm.gguf_io.errors import GGUFError, LocalLLMError
from localllm.kernels.errors import ExecutionError, OutOfMemoryError, UnsupportedModelError

__all__ = [
    "ConfigurationError",
    "ContextLengthError",
    "DownloadError",
    "ExecutionError",
    "GGUFError",
    "LocalLLMError",
    "ModelNotFoundError",
    "OutOfMemoryError",
    "RequestError",
    "SessionError",
    "StoreError",
    "UnsupportedModelError",
]


class ModelNotFoundError(LocalLLMError):
    """No model of this name; the hint gives the nearest names."""


class DownloadError(LocalLLMError):
    """A pull failed; what was fetched and verified so far is kept for the next try."""


class StoreError(LocalLLMError):
    """The model store cannot be read or changed: read-only, damaged, or in use by another process."""


class ConfigurationError(LocalLLMError):
    """A setting has a wrong value; the text names its origin (flag, environment or file)."""


class SessionError(LocalLLMError):
    """A saved session cannot be used; the conversation is then computed anew."""


class RequestError(LocalLLMError):
    """The request itself is wrong; `parameter` names the offending field, where there is one."""

    def __init__(self, message: str, *, hint: str | None = None, parameter: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.parameter = parameter


class ContextLengthError(RequestError):
    """Prompt and answer need more tokens than the context holds; both numbers are in the text."""

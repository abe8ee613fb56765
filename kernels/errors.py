"""Errors that executors raise; `localllm.errors` draws the whole tree."""

from __future__ import annotations

from localllm.gguf_io.errors import LocalLLMError


class UnsupportedModelError(LocalLLMError):
    """The file is sound, but its architecture, tokenizer or a tensor type is not supported."""


class OutOfMemoryError(LocalLLMError):
    """Memory or VRAM does not suffice for the model, its KV cache or one request."""


class ExecutionError(LocalLLMError):
    """A request failed inside the engine; other requests go on."""

"""The errors of the file format, and the root of every error that localllm shows to a user.

LocalLLMError                 (localllm/errors.py draws the whole tree)
└── GGUFError                 a model file that cannot be read: where, and what is wrong
    └── TruncatedGGUFError    the bytes end too early: a cut download, or a header that is only partly fetched
"""

from __future__ import annotations


class LocalLLMError(Exception):
    """An error whose text is for the user: what happened, where, and what to do (`hint`)."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\n  {self.hint}"


class GGUFError(LocalLLMError):
    """A GGUF file that is broken, hostile or unsupported; the text names the field and the byte offset."""


class TruncatedGGUFError(GGUFError):
    """The bytes end inside a field; `needed_bytes` is a lower bound for the length that would get past it."""

    def __init__(self, message: str, *, needed_bytes: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.needed_bytes = needed_bytes

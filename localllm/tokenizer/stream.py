"""From tokens to text that can be shown at once."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class StreamDecoder:
    """Text of ids that arrive one by one; all that `push` and `flush` return, joined, is the decoded whole.

    A character whose bytes are spread over tokens is held back until it is complete. Bytes that can never become a
    character show as U+FFFD, as they do in the whole.
    """

    __slots__ = ("_bytes_of", "_decoder", "_is_text", "_strips_space")

    def __init__(self, bytes_of: Callable[[int], bytes], is_text: Callable[[int], bool], strips_space: bool) -> None:
        self._bytes_of = bytes_of
        self._is_text = is_text
        self._strips_space = strips_space  # the space that encoding put before the first text, until it came
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The text that is complete with this token; often empty."""
        data = self._bytes_of(token)
        if self._strips_space and self._is_text(token):
            self._strips_space = False
            data = data.removeprefix(b" ")
        return self._decoder.decode(data)

    def flush(self) -> str:
        """What was held back: at the end of a generation, U+FFFD for a character that was cut."""
        return self._decoder.decode(b"", True)

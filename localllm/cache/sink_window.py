"""Endless sequences: the first tokens (attention sinks) and a window of the latest ones (StreamingLLM).

Paper: https://arxiv.org/abs/2309.17453. Whole pages are dropped, at least a quarter of the part that may move at a
time, so that a full window does not mean a shift at every token.
"""

from __future__ import annotations

from dataclasses import dataclass

from localllm.errors import ConfigurationError, RequestError
from localllm.kernels.kv_layout import PAGE_SIZE

MARGIN = 2 * PAGE_SIZE  # tokens that must be able to move
LEAST_SINKS = 4  # tokens
LEAST_WINDOW = PAGE_SIZE + MARGIN  # tokens: a page of sinks and what must be able to move


@dataclass(frozen=True, slots=True)
class SinkWindowPolicy:
    """At most `window` tokens, sinks included. `sinks` None: each request says which tokens stay (its system prompt).

    Raises ConfigurationError when the window cannot hold the sinks and a margin of two pages.
    """

    window: int
    sinks: int | None = None

    def __post_init__(self) -> None:
        if self.sinks is not None and self.sinks < 0:
            raise ConfigurationError(f"sinks must be 0 or more tokens, not {self.sinks}")
        if self.window < LEAST_WINDOW:
            raise ConfigurationError(f"window must be at least {LEAST_WINDOW} tokens, not {self.window}")
        if self.sinks is not None and self._pages(self.sinks) > self._most_sink_pages:
            raise ConfigurationError(
                f"{self.sinks} sink tokens do not fit into a window of {self.window}: at least {MARGIN} tokens must be "
                "able to move",
                hint=f"use at most {self._most_sink_pages * PAGE_SIZE} sinks or a larger window",
            )

    @property
    def capacity(self) -> int | None:
        """None: every row gets a place of its own."""
        return None

    @property
    def _pages_kept(self) -> int:
        return self.window // PAGE_SIZE

    @property
    def _most_sink_pages(self) -> int:
        return self._pages_kept - MARGIN // PAGE_SIZE

    @staticmethod
    def _pages(tokens: int) -> int:
        return -(-max(tokens, LEAST_SINKS) // PAGE_SIZE)

    def sink_pages(self, tokens: int) -> int:
        """Pages of the configured sinks, else of `tokens`; RequestError when these leave no room to move."""
        if self.sinks is not None:
            return self._pages(self.sinks)
        pages = self._pages(tokens)
        if pages > self._most_sink_pages:
            raise RequestError(
                f"the part of the prompt that must stay has {tokens} tokens; a window of {self.window} tokens can keep "
                f"{self._most_sink_pages * PAGE_SIZE} at most",
                hint="use a larger window or a shorter system prompt, or set the number of sinks",
            )
        return pages

    def dropped_pages(self, length: int, sink_pages: int) -> int:
        """Grows by a quarter of the movable pages each time that all pages are full."""
        overfull = length // PAGE_SIZE - self._pages_kept
        if overfull < 0:
            return 0
        at_once = -(-(self._pages_kept - sink_pages) // 4)
        return at_once * (overfull // at_once + 1)

    def room(self, length: int, sink_pages: int) -> int:
        """What is left of the window once the drop that is due at `length` is done."""
        return (self._pages_kept + self.dropped_pages(length, sink_pages)) * PAGE_SIZE - length

    def peak_tokens(self, rows: int) -> int:
        """The window, in whole pages."""
        return self._pages_kept * PAGE_SIZE

"""What a chat needs of a model, wherever it runs: in this process, or behind an endpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence
    from pathlib import Path

    from localllm.events import Event
    from localllm.kernels.executor import LoadProgress


@dataclass(frozen=True, slots=True)
class ContextState:
    """Tokens of the conversation: room for `limit` (None: unknown), kept now, of these `sunk` for ever, and evicted."""

    limit: int | None = None
    kept: int = 0
    sunk: int = 0
    evicted: int = 0


@dataclass(frozen=True, slots=True)
class LayerState:
    """A layer's bytes: attention with its `kv_bytes`, and the feed-forward block; `gpu_bytes` of them on the GPU."""

    attention_bytes: int
    kv_bytes: int
    feed_forward_bytes: int
    gpu_bytes: int = 0

    @property
    def nbytes(self) -> int:
        """All of the layer."""
        return self.attention_bytes + self.kv_bytes + self.feed_forward_bytes


@dataclass(frozen=True, slots=True)
class ModelState:
    """What is loaded: a line for people, bytes by device, the predicted speed, and why things are where they are.

    `layers` are as the planner sees them, with the context that the conversation has; `ends` are the bytes of what
    stands before and behind them, by name.
    """

    description: str = ""
    weight_bytes: tuple[tuple[str, int], ...] = ()
    kv_bytes: tuple[tuple[str, int], ...] = ()
    predicted_tokens_per_second: float | None = None
    reasons: tuple[str, ...] = ()
    layers: tuple[LayerState, ...] = ()
    ends: tuple[tuple[str, int], ...] = ()


class ChatBackend(Protocol):
    """One model. Methods block; a screen calls them from a worker thread. Errors are LocalLLMError.

    `sampling`: what the model's authors advise; a conversation's own values come before it.
    """

    name: str
    sampling: Mapping[str, Any]

    def load(self, progress: Callable[[LoadProgress], None]) -> None:
        """Get ready; does nothing when it is."""

    def stream(self, messages: Sequence[dict[str, Any]], sampling: dict[str, Any]) -> Generator[Event, None, None]:
        """Answer a list of messages; closing the generator stops the generation within one step.

        A last message of the assistant is continued; its `reasoning` is the thinking before it. Thinking arrives as
        text between the tags of `reasoning.KNOWN_TAGS`, the opening one included.
        """

    def cancel(self) -> None:
        """End the present `stream` soon, from any thread, with or without a `Finished`; else nothing."""

    def save(self, messages: Sequence[dict[str, Any]], path: Path, most_bytes: int) -> None:
        """Write what was computed for a conversation, where there is something: `restore` need not compute it again.

        SessionError when it is more than `most_bytes` or the disk refuses; a file that was there is then as before.
        """

    def restore(self, path: Path) -> None:
        """Put back what `save` wrote; SessionError for a file that is damaged, or of another model or setting."""

    def forget(self) -> None:
        """Another conversation follows: `context` begins at nothing."""

    def context(self) -> ContextState:
        """The conversation's tokens after the last answer, or as they were restored."""

    def state(self) -> ModelState:
        """What is loaded now."""

    def close(self) -> None:
        """Free the model; may be called twice."""

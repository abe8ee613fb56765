"""The tokens of the last answer: one that goes on is given back as it was written, not as its text would be read."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

from localllm.events import TextDelta

if TYPE_CHECKING:
    from collections.abc import Sequence

    from localllm.events import Event
    from localllm.tokenizer import Tokenizer

HELD = 64  # tokens at the end whose text may not have been shown: half a character, the beginning of a stop text


class WrittenAnswer:
    """What was answered to `messages`, which are as the template gets them. `add` sees every event of it.

    A sampled answer has often other tokens than its text would be cut into, and what was computed for those is lost
    when the model is given the text.
    """

    def __init__(self, messages: Sequence[dict[str, Any]], ids: Sequence[int] = ()) -> None:
        self._messages = [dict(message) for message in messages]
        self._ids = array("i", ids)

    def add(self, event: Event) -> None:
        """The next event of the answer."""
        if isinstance(event, TextDelta):
            self._ids.extend(event.ids)

    def ids_for(self, messages: Sequence[dict[str, Any]], text: str, tokenizer: Tokenizer) -> list[int]:
        """The tokens of `text`, an answer to `messages` that goes on: as they were written, as far as that is known."""
        if list(messages) == self._messages:
            ids = self._ids.tolist()
            control = next((place for place, token in enumerate(ids) if tokenizer.is_control(token)), len(ids))
            for count in range(control, max(0, control - HELD), -1):
                shown = tokenizer.decode(ids[:count], continues=True)
                if text.startswith(shown):
                    return ids[:count] + (tokenizer.encode(text[len(shown) :], add_bos=False) if text != shown else [])
        return tokenizer.encode(text, add_bos=False)

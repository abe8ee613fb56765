"""The chat app with a model that follows a script: `python scripted_app.py FOLDER [SECONDS_BETWEEN_PIECES]`.

For tests in a real terminal, and for a person who wants to look. The question chooses the answer.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

from scripted_chat import ScriptedBackend
from scripted_models import ScriptedModels

from localllm.chat.desk import ChatDesk
from localllm.conversations import ConversationStore
from localllm.events import Event, Finished, PromptProgress, TextDelta, Timings, Usage
from localllm.paths import Paths
from localllm.tui.app import ChatApp

PAGE = """<think>The person wants to see Markdown. I show a bit of everything: a list, a table and code.</think>
# Sorting, briefly

Here is **quicksort** in *Python*, with `pivot` in the middle:

```python
def quicksort(items: list[int]) -> list[int]:
    # divide and conquer
    if len(items) < 2:
        return items
    pivot = items[len(items) // 2]
    smaller = [item for item in items if item < pivot]
    return quicksort(smaller) + [pivot] * items.count(pivot)
```

1. pick a pivot
2. split, then sort both halves

| algorithm | mean | worst |
|-----------|------|-------|
| quicksort | n log n | n² |
| mergesort | n log n | n log n |

> It was invented by Tony Hoare in 1959. 漢字も👍
"""
LONG = "```python\n" + "".join(f"value_{n} = compute({n}, name='x{n}')  # line {n}\n" for n in range(1000)) + "```\n"


class PacedBackend(ScriptedBackend):
    """Answers in small pieces with a pause after each."""

    def __init__(self, name: str, pause: float) -> None:
        super().__init__(name=name)
        self._pause = pause

    def stream(self, messages: Sequence[dict[str, Any]], sampling: dict[str, Any]) -> Generator[Event, None, None]:
        self._cancelled.clear()
        question = str(messages[-1]["content"])
        text = LONG if "long" in question else PAGE if "sort" in question else f"You said: {question}"
        return self._paced(text)

    def _paced(self, text: str) -> Generator[Event, None, None]:
        yield PromptProgress(40, 12, 40)
        pieces = [text[start : start + 4] for start in range(0, len(text), 4)]
        started = time.monotonic()
        for number, piece in enumerate(pieces):
            if self._cancelled.wait(self._pause):
                return
            yield TextDelta(piece, (number,))
        yield Finished("stop", Usage(40, len(pieces), 12), Timings(0, 0.05, 0.06, time.monotonic() - started))


def main() -> None:
    folder, pause = Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 0.01
    paths = Paths.from_environment({"LOCALLLM_HOME": str(folder)})
    store = ConversationStore(paths.chats)
    models = ScriptedModels()
    models.make = lambda name: PacedBackend(name, pause)
    ChatApp(ChatDesk(store, models, "scripted"), paths).run()
    store.close()


if __name__ == "__main__":
    main()

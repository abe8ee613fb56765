"""When Python looks for garbage. A look at all of a model's and a long chat's objects stops every thread for 0.1 s.

So what is there is set apart when a model is loaded and when an answer begins: while one is written, only what is made
meanwhile is looked at. What was set apart and is garbage since is found between two answers, now and then.
"""

from __future__ import annotations

import gc

ANSWERS = 16  # after which everything is looked at again


class GarbageTimes:
    """Called by the thread that loads and answers."""

    def __init__(self) -> None:
        self._answers = 0

    def before_loading(self) -> None:
        """The model that is left is to be freed."""
        gc.unfreeze()

    def before_answer(self) -> None:
        """What is there will mostly stay."""
        gc.collect(1)
        gc.freeze()

    def after_loading(self) -> None:
        """All of it is looked at for once; nobody reads an answer yet."""
        gc.unfreeze()
        gc.collect()
        gc.freeze()

    def after_answer(self) -> None:
        """No key is waited for more than the pause after an answer."""
        self._answers += 1
        if self._answers % ANSWERS == 0:
            self.after_loading()

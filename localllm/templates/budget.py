"""What one rendering may use up: processor time, letters and structure. Templates and messages are untrusted."""

from __future__ import annotations

import time
from typing import TypeVar

SECONDS = 2.0  # of processor time of the rendering thread; the longest real conversations take some tenths
LONGEST_OUTPUT = 16 * 2**20
LETTERS = 64 * 2**20
LETTERS_FOR_ONE_OF_INPUT = 64
LARGEST_VALUE = 2**20  # letters and elements of one list, with all that is inside
CELLS = 4 * 2**20
DEEPEST_CALL = 100
_STEPS_BETWEEN_LOOKS = 32

_T = TypeVar("_T")


class LimitError(Exception):
    """A rendering needs more than it may have; the text says what of."""


class Budget:
    """The allowance of one rendering; every method raises LimitError once it is used up."""

    __slots__ = ("_cells", "_depth", "_end", "_largest", "_letters", "_steps", "_weights", "longest_output")

    def __init__(self, input_letters: int) -> None:
        self._end = time.thread_time() + SECONDS
        self._steps = 0
        self._letters = LETTERS + LETTERS_FOR_ONE_OF_INPUT * input_letters
        self._cells = CELLS + input_letters
        self.longest_output = LONGEST_OUTPUT + input_letters
        self._largest = LARGEST_VALUE + input_letters
        self._depth = 0
        self._weights: dict[int, tuple[object, int]] = {}

    def step(self) -> None:
        """One more turn of a loop, call or filter."""
        self._steps += 1
        if self._steps % _STEPS_BETWEEN_LOOKS == 0:
            self.look()

    def look(self) -> None:
        """See whether there is time left."""
        if time.thread_time() > self._end:
            raise LimitError(f"it takes more than {SECONDS:g} seconds")

    def letters(self, count: int) -> None:
        """Letters that are about to be made."""
        self._letters -= count
        if self._letters < 0:
            raise LimitError("it makes too much text")

    def enter(self) -> None:
        """A call inside a call."""
        self._depth += 1
        if self._depth > DEEPEST_CALL:
            raise LimitError(f"its calls are more than {DEEPEST_CALL} deep")

    def leave(self) -> None:
        """The end of what `enter` began."""
        self._depth -= 1

    def made(self, value: _T) -> _T:
        """A list, tuple or dict that the template made; `[x, x]` in a loop would be endless to print or compare."""
        if isinstance(value, (list, tuple, dict)):
            self.weigh(value)
        return value

    def check_weight(self, weight: int) -> None:
        """The weight of a value that is about to be made."""
        if weight > self._largest:
            raise LimitError("it makes too large a list")

    def weigh(self, value: object) -> int:
        """Elements and (in sixteens) letters of a value, shared parts counted each time they occur."""
        if isinstance(value, str):
            return 1 + len(value) // 16
        if isinstance(value, range):
            return 1 + len(value)
        if not isinstance(value, (list, tuple, dict)):
            return 1
        known = self._weights.get(id(value))
        if known is not None:
            return known[1]
        self._cells -= 1 + len(value)
        if self._cells < 0:
            raise LimitError("it makes too many lists")
        parts = [*value.keys(), *value.values()] if isinstance(value, dict) else value
        weight = 1 + sum(map(self.weigh, parts))
        self.check_weight(weight)
        self._weights[id(value)] = (value, weight)
        return weight

"""Walking the pages of a chunk when some are float16 (sinks, recent tokens: entries below 0) and some are quantised."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from .ir_types import Value
from .operation import load_index

if TYPE_CHECKING:
    from .emit import Emitter

RunBody = Callable[[Value, Value, list[Value]], Sequence[Value]]
"""(first page, page behind the last, carried values) -> carried values"""


def walk_runs(
    e: Emitter, table: Value, first: Value, stop: Value, carried: Sequence[Value], recent: RunBody, sealed: RunBody
) -> list[Value]:
    """Call `recent` for every run of neighbouring float16 pages and `sealed` for every run of quantised ones, in order.

    `table` is the address of the page entries, `first` and `stop` are numbers in it.
    """

    def end_of_run(start: Value, operator: str) -> Value:
        def goes_on(values: list[Value]) -> Value:
            # The entry behind the last one is not read: the last entry stands in for it.
            entry = load_index(e, table, e.min(values[0], e.sub(stop, 1)))
            return e.bit_and(e.compare("<", values[0], stop), e.compare(operator, entry, 0))

        return e.repeat_while([start], goes_on, lambda values: [e.add(values[0], 1)])[0]

    def runs(values: list[Value]) -> list[Value]:
        page, *rest = values
        middle = end_of_run(page, "<")
        rest = list(recent(page, middle, rest))
        end = end_of_run(middle, ">=")
        return [end, *sealed(middle, end, rest)]

    return e.repeat_while([first, *carried], lambda values: e.compare("<", values[0], stop), runs)[1:]

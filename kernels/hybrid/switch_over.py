"""From how many rows of a step on it is faster to copy cold weights to the device than to use them where they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

FEWEST = 8  # rows that are tried; fewer are decoding


@dataclass(frozen=True, slots=True)
class StreamCost:
    """Seconds of a streamed step beside what every step costs: `copy` for all pieces, `row` of products a row.

    `hit`: of the weights of experts, the share that a row hits (1: no experts, all is copied).
    """

    copy: float
    row: float
    hit: float = 1.0

    def seconds(self, rows: int) -> float:
        """Copying only what is hit, beside multiplying what has come."""
        return max(self.copy * (1 - (1 - self.hit) ** rows), self.row * rows)


def switch_over(stream: StreamCost, cpu_seconds: Callable[[int], float], most: int) -> int | None:
    """The fewest rows of which the CPU's half takes longer than streaming it, from 8 to `most`; None: there are none.

    `cpu_seconds(rows)` measures. Rows are doubled until the CPU loses, and the crossing is taken on the straight line
    through the last two measurements, so that no more is measured than about four times what streaming takes.
    """
    before: tuple[int, float] | None = None
    rows = FEWEST
    while rows <= most:
        seconds = cpu_seconds(rows)
        if seconds > stream.seconds(rows):
            if before is None:
                return rows
            first, base = before
            slope = (seconds - base) / (rows - first)
            line = (row for row in range(first + 1, rows) if base + slope * (row - first) > stream.seconds(row))
            return next(line, rows)
        before = rows, seconds
        rows = most if rows < most < 2 * rows else 2 * rows
    return None

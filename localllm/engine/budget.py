"""How many prompt rows a step may carry, so that running answers and cancels are not held up for long."""

from __future__ import annotations

SLOWER = 3.0  # a step with prompt rows may take so many times one without
LONGEST_STEP = 0.4  # seconds, when nobody else is running
UNIT = 16  # rows: what kernels like
LEAST = 4  # rows: a prompt must get on
FIRST = 128  # rows, before anything was measured
NEW = 0.3  # weight of a new measurement


class StepBudget:
    """Learns what a decode step and a prompt row cost, from the steps that were run."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._decode: float | None = None
        self._row: float | None = None

    def rows(self, decoding: bool) -> int:
        """Prompt rows for the next step; `decoding`: there are answers that wait for their next token."""
        if self._row is None or (decoding and self._decode is None):
            return min(FIRST, self._most)
        seconds = LONGEST_STEP
        if decoding and self._decode is not None:
            seconds = min(seconds, (SLOWER - 1) * self._decode)
        rows = max(LEAST, int(seconds / max(self._row, 1e-9)))
        return min(rows // UNIT * UNIT or rows, self._most)

    def observe(self, decode_rows: int, prompt_rows: int, seconds: float) -> None:
        """A step took so long."""
        if not prompt_rows:
            self._decode = seconds if self._decode is None else (1 - NEW) * self._decode + NEW * seconds
            return
        rest = max(0.0, seconds - (self._decode or 0.0)) if decode_rows else seconds
        row = rest / prompt_rows
        self._row = row if self._row is None else (1 - NEW) * self._row + NEW * row

"""When an engine without work gives memory back."""

from __future__ import annotations

import time


class Rest:
    """Due once, `after` seconds after the latest work; never when that is None."""

    def __init__(self, after: float | None) -> None:
        self._after = after
        self._worked: float | None = None

    def put_off(self) -> None:
        """There was work just now."""
        self._worked = time.monotonic()

    def begin(self) -> None:
        """It is taken; the next one comes after more work."""
        self._worked = None

    @property
    def seconds_left(self) -> float | None:
        """0: it is due now; None: never, as things are."""
        if self._after is None or self._worked is None:
            return None
        return max(0.0, self._worked + self._after - time.monotonic())

"""A bandwidth limit shared by all connections."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class RateLimiter:
    """Lets `bytes_per_second` through on average, in bursts of at most a quarter of a second; None: no limit."""

    def __init__(self, bytes_per_second: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = bytes_per_second
        self._clock = clock
        self._lock = threading.Lock()
        self._free_at = 0.0

    def delay(self, count: int) -> float:
        """Seconds that the caller must wait before it takes `count` more bytes."""
        if self._rate is None:
            return 0.0
        with self._lock:
            now = self._clock()
            start = max(self._free_at, now - 0.25)
            self._free_at = start + count / self._rate
            return max(0.0, self._free_at - now)

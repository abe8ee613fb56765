"""When to try again: exponential backoff with jitter, and what the server asks for in Retry-After."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

TRANSIENT_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524})
LONGEST_RETRY_AFTER = 300.0


class TransientError(Exception):
    """A failure that may pass by itself; `retry_after` seconds when the server named them."""

    def __init__(self, reason: str, retry_after: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """`attempts` failures in a row without a new byte end the transfer. Times in seconds."""

    attempts: int = 6
    base: float = 0.5
    ceiling: float = 30.0

    def delay(self, failures: int, retry_after: float | None) -> float:
        """Wait after the `failures`-th failure in a row (1 for the first)."""
        if retry_after is not None:
            return min(retry_after, LONGEST_RETRY_AFTER)
        longest = min(self.ceiling, self.base * 2.0 ** (failures - 1))
        return longest * random.uniform(0.5, 1.0)


def parse_retry_after(value: str | None, now: datetime | None = None) -> float | None:
    """Seconds from a Retry-After header: a number or a date (RFC 9110, section 10.2.3); None if unreadable."""
    if value is None:
        return None
    text = value.strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - (now or datetime.now(UTC))).total_seconds())

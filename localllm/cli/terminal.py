"""What the terminal that we write to can do."""

from __future__ import annotations

import os
import sys
from typing import TextIO

BOXES = "─│╭"


def rewrites_lines(stream: TextIO) -> bool:
    """Whether a line can be written over: a terminal, and none that calls itself dumb."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def draws_boxes(stream: TextIO) -> bool:
    """Whether the stream's encoding has the signs that a screen is drawn with."""
    try:
        BOXES.encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def has_screen() -> bool:
    """Whether the app can draw: a terminal on both sides that understands more than lines and letters."""
    both = sys.stdin.isatty() and sys.stdout.isatty()
    return both and os.environ.get("TERM", "") not in ("", "dumb") and draws_boxes(sys.stdout)

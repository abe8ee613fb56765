"""What `speculate` may say, and the speculation that it names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from localllm.errors import ConfigurationError

from .adaptive import AdaptiveSpeculation
from .lookup import LookupDrafter

if TYPE_CHECKING:
    from .protocol import Speculation

CHOICES = "auto, off or lookup"


def open_speculation(choice: str) -> Speculation | None:
    """The speculation that a user chose; None for none. ConfigurationError for what is not one of `CHOICES`."""
    if choice == "off":
        return None
    if choice in ("auto", "lookup"):
        return AdaptiveSpeculation(LookupDrafter)
    raise ConfigurationError(f"speculation {choice!r} is not known", hint=f"choose {CHOICES}")

"""Guess and verify: several tokens from one step, where guesses are right often enough to pay."""

from .adaptive import MOST_GUESSES, AdaptiveSpeculation
from .choice import Target, check_choice, open_speculation
from .draft import NOTHING, Draft, chain
from .lookup import LookupDrafter
from .protocol import Drafter, Guide, Load, Speculation
from .verify import verify

__all__ = [
    "MOST_GUESSES",
    "NOTHING",
    "AdaptiveSpeculation",
    "Draft",
    "Drafter",
    "Guide",
    "Load",
    "LookupDrafter",
    "Speculation",
    "Target",
    "chain",
    "check_choice",
    "open_speculation",
    "verify",
]

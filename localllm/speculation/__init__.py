"""Guess and verify: several tokens from one step, where guesses are right often enough to pay."""

from .adaptive import AdaptiveSpeculation
from .choice import Target, check_choice, open_speculation
from .draft import MOST_GUESSES, NOTHING, Draft, chain
from .lookup import LookupDrafter
from .protocol import Ask, Drafter, Guide, Load, Proposal, Speculation
from .verify import verify

__all__ = [
    "MOST_GUESSES",
    "NOTHING",
    "AdaptiveSpeculation",
    "Ask",
    "Draft",
    "Drafter",
    "Guide",
    "Load",
    "LookupDrafter",
    "Proposal",
    "Speculation",
    "Target",
    "chain",
    "check_choice",
    "open_speculation",
    "verify",
]

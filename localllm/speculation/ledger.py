"""Seconds won and lost by guesses, of all sequences together: estimates that are wrong show here."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .costs import StepCosts
    from .protocol import Load

_ALLOWED_LOSS = 0.01  # of the time without guesses
_MOST = 4.0  # steps of one row that may be lost at once, whatever was won before


class Ledger:
    """An account that each step with guesses changes: what they brought, less what their rows cost.

    A token brings what it would have cost in a step without guesses: the step's time divided by its tokens. A sequence
    that is alone wins a step with it; among eight it wins an eighth of one.
    """

    def __init__(self, costs: StepCosts) -> None:
        self._costs = costs
        self.right = 0  # guesses so far
        self._account: float | None = None  # seconds that may be lost
        self.token = self._row = 0.0  # seconds: what a right guess brings and what each guess costs in this step

    @property
    def in_debt(self) -> bool:
        """Whether guesses have cost more than they may."""
        return self._account is not None and self._account < 0

    def affords(self, seconds: float) -> bool:
        """Whether so much may be lost now."""
        return self._account is None or self._account >= seconds

    def begin(self, load: Load) -> None:
        """A step is planned that carries so much without guesses."""
        without = self._costs.seconds(load.rows)
        self._enter(_ALLOWED_LOSS * without)
        self.token, self._row = without / max(1, load.tokens), 0.0

    def _enter(self, won: float) -> None:
        most = _MOST * self._costs.seconds(1)
        self._account = min(most, (most if self._account is None else self._account) + won)

    def plan(self, load: Load, guesses: int, seconds: float) -> None:
        """So many guesses go with it; to make them took so long."""
        self._enter(-seconds)
        if guesses:
            self._row = (self._costs.seconds(load.rows + guesses) - self._costs.seconds(load.rows)) / guesses

    def settle(self, guesses: int, right: int) -> None:
        """Guesses of one sequence were verified."""
        self.right += right
        self._enter(right * self.token - guesses * self._row)

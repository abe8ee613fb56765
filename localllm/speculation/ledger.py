"""Seconds won and lost by guesses, of all sequences together: estimates that are wrong show here."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .costs import StepCosts
    from .protocol import Load

_ALLOWED_LOSS = 0.01  # of the time without guesses
_ALLOWANCE, _CREDIT = 3.0, 30.0  # steps of one row: debt that is allowed at once, and credit that is remembered


class Ledger:
    """An account that each step with guesses changes: what they brought, less what their rows cost.

    A token brings what it would have cost in a step without guesses: the step's time divided by its tokens. A sequence
    that is alone wins a step with it; among eight it wins an eighth of one.
    """

    def __init__(self, costs: StepCosts) -> None:
        self._costs = costs
        self.right = 0  # guesses so far
        self._account = 0.0  # seconds won
        self._baseline = 0.0  # seconds that the steps would have taken without guesses
        self._token = self._row = 0.0  # seconds: what a right guess brings and what each guess costs in this step

    @property
    def in_debt(self) -> bool:
        """Whether guesses have cost more than they may."""
        return self._account < -_ALLOWED_LOSS * self._baseline - _ALLOWANCE * self._costs.seconds(1)

    def begin(self, load: Load) -> None:
        """A step is planned that carries so much without guesses."""
        without = self._costs.seconds(load.rows)
        self._baseline += without
        self._token, self._row = without / max(1, load.tokens), 0.0

    def plan(self, load: Load, guesses: int, seconds: float) -> None:
        """So many guesses go with it; to make them took so long."""
        self._account -= seconds
        if guesses:
            self._row = (self._costs.seconds(load.rows + guesses) - self._costs.seconds(load.rows)) / guesses

    def settle(self, guesses: int, right: int) -> None:
        """Guesses of one sequence were verified."""
        self.right += right
        self._account += right * self._token - guesses * self._row
        self._account = min(self._account, _CREDIT * self._costs.seconds(1))

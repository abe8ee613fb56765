"""How often guesses of each grade were right, given that the text got as far as them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .draft import first_estimate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .draft import Draft


class Acceptance:
    """Counts that fade. `parent` gives the first estimate for a grade (the experience of all sequences)."""

    def __init__(self, *, memory: float, weight: float, parent: Acceptance | None = None) -> None:
        self._memory, self._weight, self._parent = memory, weight, parent
        self._counts: dict[int, tuple[float, float]] = {}

    def rate(self, grade: int) -> float:
        """The chance that a guess of this grade is right."""
        prior = first_estimate(grade) if self._parent is None else self._parent.rate(grade)
        right, tried = self._counts.get(grade, (0.0, 0.0))
        return (right + self._weight * prior) / (tried + self._weight)

    def judge(self, draft: Draft, accepted: Sequence[int]) -> None:
        """Count the guesses whose turn came: those behind an accepted one, and the first ones."""
        reached = {-1, *accepted}
        for node, (parent, grade) in enumerate(zip(draft.parents, draft.grades, strict=True)):
            if parent in reached:
                right, tried = self._counts.get(grade, (0.0, 0.0))
                self._counts[grade] = (self._memory * right + (node in reached), self._memory * tried + 1)
        if self._parent is not None:
            self._parent.judge(draft, accepted)

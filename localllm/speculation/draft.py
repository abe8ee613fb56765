"""What a drafter hands over: guesses for the next tokens, as a tree that one step can verify."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

MOST_GUESSES = 15  # for one sequence in one step
ROOT = -1  # the parent of a guess that follows the last known token directly


@dataclass(frozen=True, slots=True)
class Draft:
    """Guess i is token `tokens[i]` behind guess `parents[i]` < i, or behind the text itself (ROOT).

    `grades[i]` names the class of guesses it belongs to (how long the match was, which head, how sure the model):
    guesses of a grade are right about equally often, which is measured. The likeliest line comes first.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    grades: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def is_chain(self) -> bool:
        """Whether every guess follows the one before it, so that no mask is needed."""
        return all(parent == index - 1 for index, parent in enumerate(self.parents))

    def child(self, node: int, token: int) -> int | None:
        """The guess that says `token` comes behind guess `node` (or ROOT)."""
        for index in range(node + 1, len(self.tokens)):
            if self.parents[index] == node and self.tokens[index] == token:
                return index
        return None

    def keep(self, nodes: Sequence[int]) -> Draft:
        """Only these guesses, ascending; the parent of each must be among them."""
        if not nodes:
            return NOTHING
        places = {ROOT: ROOT} | {node: place for place, node in enumerate(nodes)}
        return Draft(
            tuple(self.tokens[node] for node in nodes),
            tuple(places[self.parents[node]] for node in nodes),
            tuple(self.grades[node] for node in nodes),
        )

    def first(self, most: int) -> Draft:
        """The first `most` guesses."""
        return self if len(self) <= most else self.keep(range(most))

    def depths(self) -> list[int]:
        """How many tokens behind the last known one each guess lies: 1, 2, ..."""
        found: list[int] = []
        for parent in self.parents:
            found.append(1 if parent == ROOT else found[parent] + 1)
        return found

    def ancestors(self) -> npt.NDArray[np.bool_]:
        """[n, n]: guess i builds on guess j (or is it)."""
        result = np.eye(len(self.tokens), dtype=np.bool_)
        for index, parent in enumerate(self.parents):
            if parent != ROOT:
                result[index] |= result[parent]
        return result


NOTHING = Draft()


SURE = 100  # grades from here on say how sure a drafter is, by their last digit


def sure(sureness: float, kind: int = 0) -> int:
    """The grade of a guess that its drafter holds for so likely; 0 for what is not a number. `kind`s are kept apart."""
    return SURE + 10 * kind + (int(10 * min(sureness, 0.999)) if sureness > 0 else 0)


def first_estimate(grade: int) -> float:
    """The chance that a guess is right, before any was judged."""
    return (grade % 10 + 0.5) / 10 if grade >= SURE else 0.5


def chain(tokens: Sequence[int], grades: int | Iterable[int]) -> Draft:
    """Guesses one behind the other; `grades` of each, or one of all."""
    count = len(tokens)
    each = (grades,) * count if isinstance(grades, int) else tuple(grades)
    return Draft(tuple(tokens), tuple(range(ROOT, count - 1)), each)


def merge(drafts: Sequence[Draft]) -> Draft:
    """One tree of several; guesses that are in more than one keep the grade and place of the first."""
    drafts = [draft for draft in drafts if len(draft)]
    if len(drafts) < 2:
        return drafts[0] if drafts else NOTHING
    tokens, parents, grades = (list(part) for part in (drafts[0].tokens, drafts[0].parents, drafts[0].grades))
    places = {(parent, token): node for node, (parent, token) in enumerate(zip(parents, tokens, strict=True))}
    for draft in drafts[1:]:
        found = {ROOT: ROOT}
        for node, (token, parent, grade) in enumerate(zip(draft.tokens, draft.parents, draft.grades, strict=True)):
            key = found[parent], token
            if key not in places:
                places[key] = len(tokens)
                tokens.append(token)
                parents.append(key[0])
                grades.append(grade)
            found[node] = places[key]
    return Draft(tuple(tokens), tuple(parents), tuple(grades))

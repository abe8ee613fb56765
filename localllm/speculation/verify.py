"""The verifier: which guesses of a tree are right.

The sampler chooses from every row's own processed distribution p (penalties, grammar, filters, temperature), with the
random numbers it would have used anyway; a guess is right when it is that token. For a guess x this is rejection
sampling (https://arxiv.org/abs/2211.17192) with a proposal that puts all its weight on x: it is accepted with chance
p(x), and otherwise the token is distributed as p without x. With several guesses for a place, the chance is the sum
of theirs. So the text is not only equally distributed: the same seed gives the same text as without guesses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .draft import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

    from .draft import Draft


def verify(draft: Draft, choose: Callable[[int], int | None]) -> list[int]:
    """The guesses that are right, from the root down.

    `choose(row)` takes the next token from row 0 (the last known token) or row i + 1 (guess i) and returns it, or None
    when the text ends with it. It is called once more than there are right guesses.
    """
    path: list[int] = []
    node = ROOT
    while (token := choose(node + 1)) is not None:
        child = draft.child(node, token)
        if child is None:
            break
        path.append(child)
        node = child
    return path

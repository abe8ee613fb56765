"""What is guessed pays: a machine whose steps cost what we say, and drafters that are right as often as we say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from localllm.speculation import NOTHING, AdaptiveSpeculation, Draft, Load, chain
from localllm.speculation.acceptance import Acceptance
from localllm.speculation.costs import StepCosts

MILLISECONDS = 1e-3


def rising(rows: int) -> float:
    """A step's seconds: 5 ms, and 15% more for each row."""
    return 5 * MILLISECONDS * (1 + 0.15 * (rows - 1))


def steep(rows: int) -> float:
    """Rows that cost nearly as much as steps."""
    return 5 * MILLISECONDS * (1 + 0.9 * (rows - 1))


class Guesser:
    """Guesses that the machine judges by their grade."""

    wants_hidden = False

    def __init__(self, grade: int, *, cheap: bool) -> None:
        self.cheap, self.grade, self.calls = cheap, grade, 0

    def draft(self, tokens: Sequence[int], most: int, hidden: Any) -> Draft:
        self.calls += 1
        return chain([0] * most, self.grade)

    def close(self) -> None:
        pass


def decode(
    guesser: Guesser, chance: Callable[[int], float], seconds: Callable[[int], float], count: int, others: int = 0
) -> tuple[float, float]:
    """(seconds with guesses, seconds without) of `count` tokens beside `others` rows; step times are noisy."""
    speculation = AdaptiveSpeculation(lambda: (guesser,))
    guide, random = speculation.begin(), np.random.default_rng(0)
    made, spent = 0, 0.0
    while made < count:
        draft = guide.draft([0] * (made + 1), 15, Load(1 + others, 1.0 + others), None)
        accepted = 0
        while accepted < len(draft) and random.random() < chance(made):
            accepted += 1
        rows = 1 + others + len(draft)
        spent += seconds(rows)
        speculation.observe(rows, seconds(rows) * random.uniform(0.9, 1.2))
        guide.judge(draft, range(accepted)) if len(draft) else None
        made += 1 + accepted
    guide.close()
    speculation.close()
    return spent, count * seconds(1 + others)


@pytest.mark.parametrize("cheap", [True, False])
@pytest.mark.parametrize("seconds", [rising, steep])
@pytest.mark.parametrize("others", [0, 7])
def test_wrong_guesses_cost_next_to_nothing(cheap: bool, seconds: Callable[[int], float], others: int) -> None:
    spent, plain = decode(Guesser(1, cheap=cheap), lambda _: 0.02, seconds, 1000, others)
    assert spent < 1.03 * plain


def test_right_guesses_pay() -> None:
    spent, plain = decode(Guesser(1, cheap=True), lambda _: 0.9, rising, 500)
    assert spent < 0.5 * plain


def test_right_guesses_are_left_out_where_rows_cost_as_much_as_steps() -> None:
    spent, plain = decode(Guesser(1, cheap=True), lambda _: 0.5, steep, 1000)
    assert spent < 1.03 * plain


@pytest.mark.parametrize("cheap", [True, False])
def test_a_text_that_becomes_predictable_is_noticed(cheap: bool) -> None:
    def chance(made: int) -> float:
        return 0.02 if made < 500 else 0.95

    spent, plain = decode(Guesser(1, cheap=cheap), chance, rising, 2000)
    assert spent < 0.65 * plain


def test_a_drafter_that_costs_time_rests_after_losses() -> None:
    guesser = Guesser(1, cheap=False)
    decode(guesser, lambda _: 0.0, rising, 1000)
    assert guesser.calls < 100


def test_nothing_is_guessed_before_a_step_was_measured() -> None:
    guide = AdaptiveSpeculation(lambda: (Guesser(1, cheap=True),)).begin()
    assert guide.draft([1], 15, Load(1, 1.0), None) == NOTHING


def test_the_likeliest_part_of_a_tree_is_kept() -> None:
    class Tree(Guesser):
        def draft(self, tokens: Sequence[int], most: int, hidden: Any) -> Draft:
            return Draft((1, 2, 3, 4), (-1, 0, -1, 2), (1, 1, 2, 2))

    speculation = AdaptiveSpeculation(lambda: (Tree(1, cheap=True),))
    for _ in range(50):
        speculation.observe(1, rising(1))
        speculation.experience.judge(Draft((1, 2), (-1, 0), (1, 1)), [0, 1])
        speculation.experience.judge(Draft((3,), (-1,), (2,)), [])
    assert speculation.begin().draft([1], 15, Load(1, 1.0), None).tokens == (1, 2)


def test_the_first_step_of_a_size_says_nothing() -> None:
    costs = StepCosts()
    costs.observe(1, 0.01)
    before = costs.seconds(9)
    costs.observe(9, 0.5)
    assert costs.seconds(9) == before
    for _ in range(20):
        costs.observe(9, 0.03)
    assert costs.seconds(9) == pytest.approx(0.03, rel=0.2)


def test_costs_follow_a_context_that_grows() -> None:
    costs = StepCosts()
    for _ in range(50):
        costs.observe(1, 0.01)
        costs.observe(4, 0.014)
    assert costs.seconds(4) == pytest.approx(0.014, rel=0.05)
    assert costs.seconds(1) < costs.seconds(2) < costs.seconds(4)
    for _ in range(80):
        costs.observe(1, 0.03)
    assert costs.seconds(4) == pytest.approx(0.042, rel=0.1)


def test_experience_is_the_first_estimate_of_a_new_sequence() -> None:
    experience = Acceptance(memory=0.99, weight=4)
    own = Acceptance(memory=0.9, weight=4, parent=experience)
    for _ in range(100):
        experience.judge(chain([1], 3), [0])
    assert own.rate(3) > 0.9
    for _ in range(50):
        own.judge(chain([1, 1], 3), [])
    assert own.rate(3) < 0.4
    assert own.rate(4) == 0.5


def test_the_next_sequence_inherits_a_rest() -> None:
    guesser = Guesser(1, cheap=False)
    speculation = AdaptiveSpeculation(lambda: (guesser,))
    for _ in range(20):
        guide = speculation.begin()
        for step in range(40):
            draft = guide.draft([0] * (step + 1), 15, Load(1, 1.0), None)
            speculation.observe(1 + len(draft), rising(1 + len(draft)))
            if len(draft):
                guide.judge(draft, [])
        guide.close()
    assert guesser.calls < 60  # of 800 steps


def test_a_free_drafter_goes_first_and_a_costly_one_fills_in() -> None:
    free, costly = Guesser(1, cheap=True), Guesser(2, cheap=False)
    speculation = AdaptiveSpeculation(lambda: (free, costly))
    speculation.observe(1, rising(1))
    guide = speculation.begin()
    for _ in range(60):
        draft = guide.draft([0], 4, Load(1, 1.0), None)
        if len(draft):
            guide.judge(draft, range(len(draft)) if draft.grades[0] == 2 else [])
    assert draft.grades[:1] == (2,)

"""What is guessed pays: a machine whose steps cost what we say, and drafters that are right as often as we say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from localllm.speculation import NOTHING, AdaptiveSpeculation, Ask, Draft, Guide, Load, chain
from localllm.speculation.acceptance import Acceptance
from localllm.speculation.costs import StepCosts
from localllm.speculation.draft import sure

MILLISECONDS = 1e-3


def still() -> float:
    """A clock by which guesses are made in no time, however busy the machine that runs the test."""
    return 0.0


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


def plan_one(speculation: AdaptiveSpeculation, guide: Guide, tokens: int, most: int = 15, others: int = 0) -> Draft:
    """What is verified for one sequence that runs beside `others`."""
    return speculation.plan([Ask(guide, [0] * tokens, most)], Load(1 + others, 1 + others), 200)[0]


def decode(
    guesser: Guesser, chance: Callable[[int], float], seconds: Callable[[int], float], count: int, others: int = 0
) -> tuple[float, float]:
    """(seconds with guesses, seconds without) of `count` tokens beside `others` rows; step times are noisy."""
    speculation = AdaptiveSpeculation(lambda: (guesser,), clock=still)
    guide, random = speculation.begin(), np.random.default_rng(0)
    made, spent = 0, 0.0
    while made < count:
        draft = plan_one(speculation, guide, made + 1, others=others)
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


@pytest.mark.parametrize("right", [True, False])
def test_a_drafter_as_slow_as_the_model_is_hardly_asked(right: bool) -> None:
    spent = 0.0

    class Slow(Guesser):
        def draft(self, tokens: Sequence[int], most: int, hidden: Any) -> Draft:
            nonlocal spent
            spent += most * rising(1)
            return super().draft(tokens, most, hidden)

    guesser = Slow(1, cheap=False)
    speculation = AdaptiveSpeculation(lambda: (guesser,), clock=lambda: spent)
    speculation.observe(1, rising(1))
    guide, made = speculation.begin(), 0
    while made < 2000:
        draft = plan_one(speculation, guide, made + 1)
        spent += rising(1 + len(draft))
        speculation.observe(1 + len(draft), rising(1 + len(draft)))
        accepted = len(draft) if right else 0
        if len(draft):
            guide.judge(draft, range(accepted))
        made += 1 + accepted
    assert spent < 1.03 * 2000 * rising(1)
    assert guesser.calls < 30


def test_nothing_is_guessed_before_a_step_was_measured() -> None:
    speculation = AdaptiveSpeculation(lambda: (Guesser(1, cheap=True),), clock=still)
    assert plan_one(speculation, speculation.begin(), 1) == NOTHING


def test_the_likeliest_part_of_a_tree_is_kept() -> None:
    class Tree(Guesser):
        def draft(self, tokens: Sequence[int], most: int, hidden: Any) -> Draft:
            return Draft((1, 2, 3, 4), (-1, 0, -1, 2), (1, 1, 2, 2))

    speculation = AdaptiveSpeculation(lambda: (Tree(1, cheap=True),), clock=still)
    for _ in range(50):
        speculation.observe(1, rising(1))
        speculation.experience.judge(Draft((1, 2), (-1, 0), (1, 1)), [0, 1])
        speculation.experience.judge(Draft((3,), (-1,), (2,)), [])
    assert plan_one(speculation, speculation.begin(), 1).tokens == (1, 2)


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
    speculation = AdaptiveSpeculation(lambda: (guesser,), clock=still)
    for _ in range(20):
        guide = speculation.begin()
        for step in range(40):
            draft = plan_one(speculation, guide, step + 1)
            speculation.observe(1 + len(draft), rising(1 + len(draft)))
            if len(draft):
                guide.judge(draft, [])
        guide.close()
    assert guesser.calls < 60  # of 800 steps


@pytest.mark.parametrize("drawn", [False, True])
def test_drawn_texts_and_others_learn_apart(drawn: bool) -> None:
    speculation = AdaptiveSpeculation(lambda: (Guesser(1, cheap=True),), clock=still)
    speculation.observe(1, rising(1))
    guide = speculation.begin(drawn=drawn)
    for step in range(400):
        draft = plan_one(speculation, guide, step + 1)
        speculation.observe(1 + len(draft), rising(1 + len(draft)))
        if len(draft):
            guide.judge(draft, [])
    guesses = {kind: len(plan_one(speculation, speculation.begin(drawn=kind), 1)) for kind in (drawn, not drawn)}
    assert guesses[drawn] <= 1 < guesses[not drawn]  # one is a try


def test_a_network_is_believed_before_it_was_judged() -> None:
    experience = Acceptance(memory=0.99, weight=4)
    assert [experience.rate(sure(chance, 3)) for chance in (0.0, 0.52, 0.99, float("nan"))] == [0.05, 0.55, 0.95, 0.05]


def test_what_was_won_pays_for_few_losses() -> None:
    """A long text that is guessed well, then one that is not: no more is lost than after a short one."""
    lost = []
    for before in (100, 5000):
        speculation = AdaptiveSpeculation(lambda: (Guesser(1, cheap=True),), clock=still)
        speculation.observe(1, rising(1))
        for chance, count in ((1.0, before), (0.0, 100)):
            guide, spent, made = speculation.begin(), 0.0, 0
            while made < count:
                draft = plan_one(speculation, guide, made + 1)
                speculation.observe(1 + len(draft), rising(1 + len(draft)))
                spent += rising(1 + len(draft))
                made += 1 + int(chance) * len(draft)
                if len(draft):
                    guide.judge(draft, range(int(chance) * len(draft)))
            guide.close()
        lost.append(spent / (100 * rising(1)) - 1)
    assert max(lost) < 0.12
    assert lost[1] < lost[0] + 0.02


def test_a_free_drafter_goes_first_and_a_costly_one_fills_in() -> None:
    free, costly = Guesser(1, cheap=True), Guesser(2, cheap=False)
    speculation = AdaptiveSpeculation(lambda: (free, costly), clock=still)
    speculation.observe(1, rising(1))
    guide = speculation.begin()
    for _ in range(60):
        draft = plan_one(speculation, guide, 1, most=4)
        if len(draft):
            guide.judge(draft, range(len(draft)) if draft.grades[0] == 2 else [])
    assert draft.grades[:1] == (2,)


def decode_together(
    chances: Sequence[float], seconds: Callable[[int], float], count: int
) -> tuple[float, float, list[int]]:
    """(seconds with guesses, seconds without, guesses of each) of sequences whose guesses are right that often."""
    speculation = AdaptiveSpeculation(lambda: (Guesser(1, cheap=True),), clock=still)
    guides, random = [speculation.begin() for _ in chances], np.random.default_rng(0)
    made, guessed, spent, worth = [0] * len(chances), [0] * len(chances), 0.0, 0.0
    while sum(made) < count:
        asks = [Ask(guide, [0] * (done + 1), 15) for guide, done in zip(guides, made, strict=True)]
        drafts = speculation.plan(asks, Load(len(chances), len(chances)), 200)
        rows = len(chances) + sum(map(len, drafts))
        spent += seconds(rows)
        speculation.observe(rows, seconds(rows) * random.uniform(0.9, 1.2))
        for index, draft in enumerate(drafts):
            accepted = 0
            while accepted < len(draft) and random.random() < chances[index]:
                accepted += 1
            if len(draft):
                guides[index].judge(draft, range(accepted))
            made[index] += 1 + accepted
            guessed[index] += len(draft)
            worth += (1 + accepted) * seconds(len(chances)) / len(chances)
    return spent, worth, guessed


def crowded(rows: int) -> float:
    """Up to four rows cost little, then each as much as the fifth part of a step of one."""
    return 5 * MILLISECONDS * (1 + 0.1 * min(rows - 1, 3) + 0.2 * max(0, rows - 4))


@pytest.mark.parametrize("chance", [0.02, 0.5, 0.8, 0.97])
@pytest.mark.parametrize("count", [2, 8, 16])
def test_batches_are_never_slower(chance: float, count: int) -> None:
    spent, plain, _ = decode_together([chance] * count, crowded, 300 * count)
    assert spent < 1.03 * plain


def test_right_guesses_pay_in_batches_too() -> None:
    spent, plain, _ = decode_together([0.97] * 2, crowded, 1000)
    assert spent < 0.7 * plain
    spent, plain, _ = decode_together([0.97] * 8, crowded, 3000)
    assert spent < 0.97 * plain


def test_the_rows_of_a_step_go_to_those_who_use_them_best() -> None:
    spent, plain, guessed = decode_together([0.95, 0.3, 0.3, 0.3], crowded, 3000)
    assert spent < plain
    assert guessed[0] > 3 * max(guessed[1:])


def test_at_most_so_many_guesses_in_all() -> None:
    speculation = AdaptiveSpeculation(lambda: (Guesser(1, cheap=True),), clock=still)
    for _ in range(50):
        speculation.observe(1, rising(1))
        speculation.experience.judge(chain([1] * 4, 1), range(4))
    asks = [Ask(speculation.begin(), [1], most) for most in (15, 15, 2)]
    drafts = speculation.plan(asks, Load(3, 3), 7)
    assert sum(map(len, drafts)) == 7
    assert len(drafts[2]) <= 2


def test_larger_steps_share_what_is_known_of_them() -> None:
    costs = StepCosts()
    for rows in (1, 8, 41, 38, 39, 41, 38, 43):
        costs.observe(rows, rising(rows))
    assert costs.seconds(40) == pytest.approx(rising(40), rel=0.1)


def test_a_size_that_looked_expensive_once_is_tried_again() -> None:
    costs = StepCosts()
    for rows in (1, 4, 8, 8, 8):
        costs.observe(rows, 0.05 if rows == 8 else rising(rows))  # a bad moment
    assert costs.seconds(8) > 1.3 * rising(8)
    for _ in range(400):
        costs.observe(1, rising(1))
        costs.observe(4, rising(4))
    assert costs.seconds(8) == pytest.approx(rising(8), rel=0.2)


def test_disturbed_steps_do_not_look_like_costs() -> None:
    costs, random = StepCosts(), np.random.default_rng(0)
    for step in range(600):
        rows = 1 + step % 4
        costs.observe(rows, rising(rows) * (3 if random.random() < 0.1 else 1))
    for rows in range(1, 5):
        assert costs.factor(rows) == pytest.approx(rising(rows) / rising(1), rel=0.1)


class Sometimes(Guesser):
    """Guesses only when it is told to."""

    speaks = False

    def draft(self, tokens: Sequence[int], most: int, hidden: Any) -> Draft:
        return super().draft(tokens, most, hidden) if self.speaks else NOTHING


def test_right_guesses_of_others_do_not_wake_a_drafter_that_rests() -> None:
    cheap, costly = Sometimes(1, cheap=True), Guesser(2, cheap=False)
    speculation = AdaptiveSpeculation(lambda: (cheap, costly), clock=still)
    for _ in range(20):
        for rows in (1, 2, 3):
            speculation.observe(rows, rising(rows))
    for _ in range(300):
        speculation.experience.judge(chain([0], 1), [0])
        speculation.experience.judge(chain([0], 2), [])
    guide = speculation.begin()
    for count in range(10, 20):
        plan_one(speculation, guide, count)
    calls = costly.calls
    assert 0 < calls < 10  # it rests
    cheap.speaks = True
    draft = plan_one(speculation, guide, 20)
    assert len(draft) > 0
    guide.judge(draft, range(len(draft)))
    cheap.speaks = False
    for count in range(21, 25):
        plan_one(speculation, guide, count)
    assert costly.calls == calls


def test_a_drafter_that_rested_is_tried_whatever_is_expected_of_it() -> None:
    costly = Guesser(2, cheap=False)
    speculation = AdaptiveSpeculation(lambda: (costly,), clock=still)
    for _ in range(20):
        for rows in (1, 2, 3):
            speculation.observe(rows, rising(rows))
    for _ in range(300):
        speculation.experience.judge(chain([0], 2), [])
    guide, found = speculation.begin(), []
    for count in range(10, 90):
        draft = plan_one(speculation, guide, count)
        found.append(len(draft))
        if len(draft):
            guide.judge(draft, [])
    assert 2 in found
    assert sum(map(bool, found)) < 8

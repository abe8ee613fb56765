"""What guessing ahead brings where steps cost what we say: real answers are replayed, without the clock.

    python bench/replay.py MODEL [--parallel 1 2 4 8 16] [--tokens 160] [--threads 2] [--costs 1:1 2:1.13 4:1.42 ...]

The model answers every request once. Then the engine's own decisions (which guesses, how many, for whom) are replayed
over those answers with steps of the given costs, disturbed by chance, so that a noisy machine measures the decisions
too. `--costs` are ROWS:TIME relative to one row, with straight lines between; `scripts/verify_benchmark.py` measures
them. The numbers in front of the ratios: guesses that were right, of those verified.
"""

from __future__ import annotations

import argparse
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

from speculation import TASKS

from localllm import LLM
from localllm.speculation import AdaptiveSpeculation, Ask, Draft, Guide, Load, LookupDrafter, verify

COSTS = ("1:1", "2:1.13", "3:1.38", "4:1.42", "6:1.72", "8:1.75", "12:2.75", "16:3.2", "24:5.2", "32:6.2", "64:12")
STEP, TOKEN = 0.05, 0.025  # of a step of one row: what a step costs besides its rows, and choosing a token


@dataclass(frozen=True, slots=True)
class Answer:
    """A request's prompt and what the model answered."""

    kind: str
    prompt: list[int]
    tokens: list[int]


class Costs:
    """Time of a step by rows and chosen tokens."""

    def __init__(self, points: list[str]) -> None:
        self._points = sorted((int(rows), float(time)) for rows, time in (point.split(":") for point in points))

    def seconds(self, rows: int, tokens: int) -> float:
        """Relative to the rows of a step of one row; beyond the last point in proportion."""
        points = self._points
        found = points[-1][1] * rows / points[-1][0]
        for (low, start), (high, stop) in pairwise(points):
            if low <= rows <= high:
                found = start + (stop - start) * (rows - low) / (high - low)
        return found + STEP + TOKEN * tokens


class Stream:
    """One answer while it is replayed."""

    def __init__(self, answer: Answer, guide: Guide) -> None:
        self.answer, self.guide = answer.tokens, guide
        self.tokens = [*answer.prompt, answer.tokens[0]]
        self.made, self.again = 1, 0

    @property
    def left(self) -> int:
        """Tokens to come."""
        return len(self.answer) - self.made

    def judge(self, draft: Draft) -> tuple[int, int]:
        """(tokens, right guesses) of a step."""
        before = self.made

        def choose(row: int) -> int | None:
            self.tokens.append(self.answer[self.made])
            self.made += 1
            return self.tokens[-1] if self.left else None

        path = verify(draft, choose)
        in_place = next((place for place, node in enumerate(path) if node != place), len(path))
        self.again = len(path) - in_place
        if len(draft):
            self.guide.judge(draft, path)
        return self.made - before, len(path)


def replay(answers: list[Answer], speculation: AdaptiveSpeculation, costs: Costs, chance: random.Random) -> list[float]:
    """[time with guesses, time without, guesses, right ones] of answers that begin together."""
    streams = [Stream(answer, speculation.begin()) for answer in answers]
    spent = guesses = right = 0.0
    while active := [stream for stream in streams if stream.left]:
        rows = sum(1 + stream.again for stream in active)
        asks = {stream: Ask(stream.guide, stream.tokens, stream.left - 1) for stream in active if stream.left > 1}
        planned = speculation.plan(list(asks.values()), Load(rows, len(active)), 512 - rows) if asks else []
        drafts = dict(zip(asks, planned, strict=True))
        rows += sum(map(len, planned))
        guesses += sum(map(len, planned))
        made = [stream.judge(drafts.get(stream, Draft())) for stream in active]
        right += sum(found for _, found in made)
        seconds = costs.seconds(rows, sum(count for count, _ in made))
        spent += seconds
        disturbed = chance.uniform(0.9, 1.1) * (1.5 if chance.random() < 0.05 else 1)
        speculation.observe(rows, seconds * disturbed)
    for stream in streams:
        stream.guide.close()
    counts = [len(answer.tokens) - 1 for answer in answers]
    running = [sum(count > step for count in counts) for step in range(max(counts))]
    return [spent, sum(costs.seconds(count, count) for count in running), guesses, right]


def ask(options: argparse.Namespace) -> list[Answer]:
    """Every kind as often as the largest number of requests at once, each with a number of its own in front."""
    most = max(options.parallel)
    prompts = []
    for kind in dict.fromkeys(task.kind for task in TASKS):
        own = [task.prompt for task in TASKS if task.kind == kind]
        prompts += [(kind, f"Request {index}. {own[index % len(own)]}") for index in range(most)]
    with LLM(options.model, speculate="off", device="cpu", threads=options.threads, context=2048, parallel=16) as llm:

        def one(request: tuple[str, str]) -> Answer:
            messages = [{"role": "user", "content": request[1]}]
            completion = llm.chat(messages, max_tokens=options.tokens, temperature=0.0)
            return Answer(request[0], llm.encode_chat(messages), list(completion.ids))

        with ThreadPoolExecutor(16) as pool:
            return list(pool.map(one, prompts))


def main() -> None:
    """Answer, replay, print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model")
    parser.add_argument("--parallel", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--costs", nargs="+", default=list(COSTS))
    options = parser.parse_args()
    costs, answers = Costs(options.costs), ask(options)
    print("| kind | " + " | ".join(f"{count} at once" for count in options.parallel) + " |")
    print("|---" * (1 + len(options.parallel)) + "|")
    for kind in dict.fromkeys(answer.kind for answer in answers):
        own, cells = [answer for answer in answers if answer.kind == kind], []
        for count in options.parallel:
            total = [0.0] * 4
            for turn in range(options.rounds):
                speculation = AdaptiveSpeculation(lambda: (LookupDrafter(),))
                for first in range(0, len(own) - count + 1, count):
                    found = replay(own[first : first + count], speculation, costs, random.Random(turn))
                    total = [a + b for a, b in zip(total, found, strict=True)]
            cells.append(f"{total[3]:.0f}/{total[2]:.0f} **{total[1] / total[0]:.2f}**")
        print(f"| {kind} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()

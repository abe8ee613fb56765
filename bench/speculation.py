"""Measure what guessing ahead brings: the same answers with and without it, in turn, and how many guesses were right.

    python bench/speculation.py MODEL [--speculate auto] [--rounds 3] [--tokens 160] [--threads 2] [--tasks copy prose]
    python bench/speculation.py MODEL --parallel 1 2 4 8 16

Both models are in memory and answer by turns, so that a busy moment of the machine hits both alike. Ratios are medians
over the rounds of decode seconds. Answers must be equal, token by token, and the program fails if they are not. With
`--parallel` so many requests of a kind run at once, each with a number of its own in front; the time is that of all.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from localllm import LLM

if TYPE_CHECKING:
    from localllm.completion import Completion

CODE = '''def read_table(path, separator=","):
    """Read rows of a text file."""
    rows = []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            cells = [cell.strip() for cell in line.split(separator)]
            if rows and len(cells) != len(rows[0]):
                raise ValueError(f"line {number} has {len(cells)} cells, not {len(rows[0])}")
            rows.append(cells)
    return rows
'''
LETTER = """Dear Ms Harper,
thank you for your order of 12 garden chairs on the 3rd of May. Unfortunately the green model is out of stock until the
end of June. We can send you the blue model this week at the same price, or keep your order until the green chairs
arrive. Please tell us by Friday which you prefer. If we do not hear from you we will send the blue model.
Kind regards,
Tom Becker, Becker Garden Supplies"""
REPORT = """The town council met on Monday evening. The mayor opened the meeting at seven. The council approved the
budget for the new library, which will cost two million euros and open in the spring of next year. The council then
discussed the traffic in the old town. Shop owners asked for more parking places near the market square. The
council decided to build a car park with eighty places behind the town hall. The meeting ended at half past
nine."""

EASY = ("copy", "edit", "summarise")


@dataclass(frozen=True, slots=True)
class Task:
    """A prompt of a kind."""

    kind: str
    prompt: str


TASKS = (
    Task("copy", f"Repeat this code exactly, without any change:\n\n```python\n{CODE}```"),
    Task("copy", f"Repeat the following letter word for word:\n\n{LETTER}"),
    Task(
        "edit",
        f"Rename the function read_table to load_rows in this code and print the whole code:\n\n```python\n{CODE}```",
    ),
    Task("edit", f"Replace the name Tom Becker with Anna Lindt in this letter and print the whole letter:\n\n{LETTER}"),
    Task("summarise", f"Summarise this report by quoting its most important sentences word for word:\n\n{REPORT}"),
    Task("summarise", f"Write a summary of the following report.\n\n{REPORT}"),
    Task("prose", "Write a story about a lighthouse keeper who finds a strange shell on the beach."),
    Task("prose", "Describe an autumn morning in a mountain village."),
    Task("chat", "What is the difference between a lake and a pond?"),
    Task("chat", "How do I learn to play the guitar as an adult? Give me some advice."),
    Task("chat", "Explain how vaccines work."),
    Task("chat", "Give me five ideas for a cheap dinner."),
)


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model")
    parser.add_argument("--speculate", default="auto")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--tasks", nargs="+", choices=sorted({task.kind for task in TASKS}))
    parser.add_argument("--show", action="store_true", help="print the beginning of each answer")
    parser.add_argument("--json", type=Path, help="write ratios by kind, too")
    parser.add_argument("--parallel", type=int, nargs="+", help="how many requests at once")
    options = parser.parse_args()
    tasks = [task for task in TASKS if not options.tasks or task.kind in options.tasks]
    most = max(options.parallel or [1])
    facts: dict[str, float] = {}
    common = {"threads": options.threads, "device": "cpu", "context": 2048, "parallel": most}
    with (
        LLM(options.model, speculate="off", **common) as plain,
        LLM(options.model, speculate=options.speculate, **common) as guessing,
    ):
        if options.parallel:
            print("| kind | at once | tokens | plain tok/s | guessing tok/s | ratio (each round) | guesses | right |")
            print("|---|---|---|---|---|---|---|---|")
            for kind in dict.fromkeys(task.kind for task in tasks):
                for count in options.parallel:
                    ratio, line = together(plain, guessing, kind, count, options)
                    facts[f"{kind}_{count}"] = ratio
                    print(line, flush=True)
            write(options.json, facts)
            return
        results = [measure(plain, guessing, task, options) for task in tasks]
    print("| task | tokens | plain tok/s | guessing tok/s | ratio | guesses | right | tokens a guess step |")
    print("|---|---|---|---|---|---|---|---|")
    for kind in dict.fromkeys(task.kind for task in tasks):
        own = [result for result in results if result["kind"] == kind]
        for result in own:
            print(row(kind, result))
        facts[kind] = statistics.geometric_mean([float(result["ratio"]) for result in own])
        facts[f"{kind}_right"] = sum(float(r["accepted"]) for r in own) / max(
            1.0, sum(float(r["drafted"]) for r in own)
        )
        if len(own) > 1:
            print(f"| **{kind}** | | | | **{facts[kind]:.2f}** | | | |")
    easy = [facts[kind] for kind in EASY if kind in facts]
    if easy:
        facts["together"] = statistics.geometric_mean(easy)
    facts["least"] = min(float(result["ratio"]) for result in results)
    write(options.json, facts)


def write(path: Path | None, facts: dict[str, float]) -> None:
    """The ratios by name, where they are wanted."""
    if path is not None:
        path.write_text(json.dumps(facts), encoding="utf-8")


def measure(plain: LLM, guessing: LLM, task: Task, options: argparse.Namespace) -> dict[str, float | str]:
    """Decode both ways, by turns; the first answer of each is thrown away."""
    seconds: dict[str, list[float]] = {"plain": [], "guessing": []}
    answers: dict[str, Completion] = {}
    for turn in range(options.rounds + 1):
        for name, llm in (("plain", plain), ("guessing", guessing)):
            answers[name] = llm.chat(
                [{"role": "user", "content": task.prompt}],
                max_tokens=options.tokens,
                temperature=options.temperature,
                seed=7,
            )
            if turn:
                seconds[name].append(answers[name].timings.decode_seconds)
    if answers["plain"].ids != answers["guessing"].ids:
        raise SystemExit(f"the answers differ for: {task.prompt[:60]}")
    if options.show:
        print(f"--- {task.prompt[:50]!r}: {answers['plain'].text[:300]!r}")
    count = len(answers["plain"].ids) - 1
    usage = answers["guessing"].usage
    ratios = [a / b for a, b in zip(seconds["plain"], seconds["guessing"], strict=True)]
    return {
        "kind": task.kind,
        "tokens": count + 1,
        "plain": count / statistics.median(seconds["plain"]),
        "guessing": count / statistics.median(seconds["guessing"]),
        "ratio": statistics.median(ratios),
        "drafted": usage.drafted_tokens,
        "accepted": usage.accepted_tokens,
    }


def together(plain: LLM, guessing: LLM, kind: str, count: int, options: argparse.Namespace) -> tuple[float, str]:
    """The ratio and a line of the table for `count` requests of a kind at once."""
    own = [task for task in TASKS if task.kind == kind]
    prompts = [f"Request {index}. {own[index % len(own)].prompt}" for index in range(count)]
    seconds: dict[str, list[float]] = {"plain": [], "guessing": []}
    answers: dict[str, list[Completion]] = {}
    for turn in range(options.rounds + 1):
        for name, llm in (("plain", plain), ("guessing", guessing)):

            def ask(prompt: str, llm: LLM = llm) -> Completion:
                messages = [{"role": "user", "content": prompt}]
                return llm.chat(messages, max_tokens=options.tokens, temperature=options.temperature, seed=7)

            with ThreadPoolExecutor(count) as pool:
                began = time.perf_counter()
                answers[name] = list(pool.map(ask, prompts))
                took = time.perf_counter() - began
            if turn:  # the first time prompts are computed; then they are found in the prefix cache
                seconds[name].append(took)
    for a, b in zip(answers["plain"], answers["guessing"], strict=True):
        if a.ids != b.ids:
            raise SystemExit(f"the answers differ for {count} of {kind}")
    tokens = sum(len(answer.ids) for answer in answers["plain"])
    rounds = [a / b for a, b in zip(seconds["plain"], seconds["guessing"], strict=True)]
    drafted, accepted = (
        sum(getattr(answer.usage, name) for answer in answers["guessing"])
        for name in ("drafted_tokens", "accepted_tokens")
    )
    rates = " | ".join(f"{tokens / statistics.median(own):.0f}" for own in seconds.values())
    each = " ".join(f"{ratio:.2f}" for ratio in rounds)
    share = f"{accepted / drafted:.0%}" if drafted else "-"
    ratio = f"**{statistics.median(rounds):.2f}** ({each})"
    return statistics.median(rounds), f"| {kind} | {count} | {tokens} | {rates} | {ratio} | {drafted} | {share} |"


def row(kind: str, result: dict[str, float | str]) -> str:
    """A line of the table."""
    drafted, accepted = float(result["drafted"]), float(result["accepted"])
    share = f"{accepted / drafted:.0%}" if drafted else "-"
    return (
        f"| {kind} | {result['tokens']} | {result['plain']:.0f} | {result['guessing']:.0f} | {result['ratio']:.2f} "
        f"| {drafted:.0f} | {share} | {float(result['tokens']) / max(1.0, float(result['tokens']) - accepted):.2f} |"
    )


if __name__ == "__main__":
    main()

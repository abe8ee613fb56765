"""How long a running answer stops when somebody else's long prompt arrives, against its usual pace.

    python bench/arrivals.py MODEL [--prompt 2000] [--rounds 5] [--threads 2] [--json FILE]

One answer is written; after a while a prompt of so many tokens comes, nothing of which is in the cache. The longest
gap between two tokens until that prompt is read, in medians of the gaps while it is read and of those before it came.
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
from pathlib import Path

import numpy as np

from localllm.events import TextDelta
from localllm.llm import LLM

BEFORE, LONGEST = 60, 1000  # tokens until the prompt comes, tokens of the answer at most


def one_round(llm: LLM, prompt: list[int], seed: int) -> tuple[list[float], list[float]]:
    """Gaps between tokens before the prompt came, and while it was read."""
    came: list[float] = []
    read: list[float] = []

    def other() -> None:
        came.append(time.perf_counter())
        llm.generate(prompt, max_tokens=1)
        read.append(time.perf_counter())

    thread = threading.Thread(target=other)
    times: list[float] = []
    for event in llm.stream([100 + seed, 200, 300], max_tokens=LONGEST, seed=seed, temperature=1.0, ignore_eos=True):
        if isinstance(event, TextDelta):
            times.append(time.perf_counter())
            if len(times) == BEFORE:
                thread.start()
            if read:
                break
    thread.join()
    gaps = list(zip(times[1:], np.diff(times).tolist(), strict=True))
    return [gap for at, gap in gaps if at < came[0]], [gap for at, gap in gaps if came[0] <= at <= read[0]]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--prompt", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    random = np.random.default_rng(1)
    while_read, before = [], []
    with LLM(options.model, device="cpu", threads=options.threads, context=4096, parallel=2, speculate="off") as llm:
        for seed in range(options.rounds + 1):
            prompt = random.integers(1000, 20_000, options.prompt).tolist()
            usual, beside = one_round(llm, prompt, seed)
            if seed:
                while_read.append(max(beside) / statistics.median(beside))
                before.append(max(beside) / statistics.median(usual))
                print(
                    f"{len(beside)} tokens beside the prompt: median {1e3 * statistics.median(beside):.1f} ms, longest "
                    f"{1e3 * max(beside):.1f} ms; before {1e3 * statistics.median(usual):.1f} ms"
                )
    facts = {"of_median": statistics.median(while_read), "of_median_before": statistics.median(before)}
    print(f"longest of the median: {facts['of_median']:.2f}, of the median before: {facts['of_median_before']:.2f}")
    if options.json:
        options.json.write_text(json.dumps(facts), encoding="utf-8")


if __name__ == "__main__":
    main()

"""Text without end: perplexity window by window, and the speed and memory of a very long answer.

    python bench/stream.py segments smollm2:135m --window 4096 --windows 5 --passes 5
    python bench/stream.py generate smollm2:135m --window 1024 --tokens 100000

`segments` streams the topics of Python's own documentation through a window, the same text in every pass (texts differ
in difficulty; it is longer than the window, so that a repetition is never in sight), and compares some positions with a
window of as many tokens that is computed from scratch. `generate` writes one long answer and compares the first
thousand tokens after its window was full with the last; then it goes on with it and with a fresh one whose window is
full, a hundred tokens of each in turn, so that a busy moment of the machine hits both.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from array import array
from pathlib import Path
from typing import Any

import numpy as np
from kv_loss import python_topics

from localllm.engine.readers import NextTokenLogprobs
from localllm.events import TextDelta
from localllm.llm import LLM

SCORED = 64  # positions at the end of each window that is computed from scratch
PIECE = 100  # tokens of each answer in turn
MARKS = (100, 1000, 2000, 5000, 10_000, 20_000, 40_000, 60_000, 80_000)  # tokens after which memory is looked at


class Windows(NextTokenLogprobs):
    """Says how far it is: a number for each window."""

    def __init__(self, ids: list[int], window: int) -> None:
        super().__init__(ids)
        self._window = window

    def read(self, position: int, rows: np.ndarray) -> None:
        """Take the logits of some positions."""
        super().read(position, rows)
        done, before = (position + len(rows)) // self._window, position // self._window
        if done > before:
            part = self.values[before * self._window : done * self._window]
            print(f"{math.exp(-part.mean()):.2f}", end=" ", flush=True)


def segments(arguments: argparse.Namespace) -> dict[str, float]:
    """The perplexity of every window in every pass over the text, and of windows from scratch beside it."""
    window, windows = arguments.window, arguments.windows
    text = arguments.file.read() if arguments.file else python_topics()
    options = {"window": window, "sinks": arguments.sinks, "kv": arguments.kv}
    with LLM(arguments.model, device="cpu", threads=arguments.threads, **options) as llm:
        once = llm.tokenizer.encode(text)[: window * windows]
        if len(once) < window * windows:
            raise SystemExit(f"the text has {len(once)} tokens only")
        ids = [*once * arguments.passes, once[0]]
        started = time.perf_counter()
        reader = Windows(ids, window)
        llm.engine.read(ids, reader)
        losses = -reader.values
        print(
            f"\n{len(ids)} tokens, {time.perf_counter() - started:.0f} s; perplexity of each window, pass after pass:"
        )
        table = np.exp(losses.reshape(arguments.passes, windows, window).mean(axis=2))
        for row in table:
            print(" ".join(f"{value:.2f}" for value in row), flush=True)
        facts = {"windows": float(arguments.passes * windows)}
        first = np.array([*table[1:2, 0], *table[0, 1:]])  # of each window of the text, when the cache was full
        if arguments.passes > 1:
            facts["worst"] = float((table[1:] / first).max())
            print(f"worst against the same text when the window was first full: {facts['worst']:.4f}")
        return facts | compare(llm, ids, losses, window, arguments.samples)


def compare(llm: LLM, ids: list[int], losses: np.ndarray, window: int, samples: int) -> dict[str, float]:
    """At ends of windows spread over the text: the stream against 7/8 of a window (what it keeps on average)."""
    kept = window * 7 // 8
    stream, scratch = [], []
    ends = np.linspace(2 * window, len(ids) - 1, samples).astype(int)
    for end in ends.tolist():
        wanted = np.asarray(ids[end - SCORED + 1 : end + 1])
        logits = llm.logits(ids[end - kept : end])[-SCORED:].astype(np.float64)
        best = logits.max(axis=1)
        total = best + np.log(np.exp(logits - best[:, None]).sum(axis=1))
        scratch.append(total - logits[np.arange(SCORED), wanted])
        stream.append(losses[end - SCORED : end])
    change = np.concatenate(stream).astype(np.float64) - np.concatenate(scratch)
    error = change.std(ddof=1) / math.sqrt(len(change))
    print(
        f"{len(change)} positions: stream {math.exp(np.concatenate(stream).mean()):.3f}, from scratch "
        f"{math.exp(np.concatenate(scratch).mean()):.3f}, ratio {math.exp(change.mean()):.4f} +- {error:.4f}"
    )
    return {"of_anew": math.exp(change.mean()), "of_anew_error": error}


def generate(arguments: argparse.Namespace) -> dict[str, float]:
    """One long answer, its memory and its first and last thousand; then its next tokens and a fresh one's in turn."""
    sampling = {"temperature": 1.0, "ignore_eos": True}
    options = {"window": arguments.window, "sinks": 4, "kv": arguments.kv, "parallel": 2}
    options["speculate"] = arguments.speculate
    with LLM(arguments.model, device="cpu", threads=arguments.threads, **options) as llm:
        prompt = llm.tokenizer.encode(python_topics()[:2000])
        ids, facts = answer(llm, prompt, arguments, sampling)
        long = [*prompt, *ids]
        fresh = [*prompt, *llm.generate(prompt, max_tokens=2 * arguments.window, seed=2, **sampling).ids]
        speeds: tuple[list[float], list[float]] = [], []
        for round_number in range(arguments.pieces):
            for text, own in list(zip((long, fresh), speeds, strict=True))[:: 1 - 2 * (round_number % 2)]:
                piece = llm.generate(text, max_tokens=PIECE, seed=round_number, **sampling)
                own.append((PIECE - 1) / piece.timings.decode_seconds)
                text += piece.ids
                if piece.usage.cached_tokens < len(text) - 2 * PIECE - 1:
                    raise SystemExit("the cache had lost the answer, so that its beginning was computed anew")
        ratios = sorted(old / new for old, new in zip(*speeds, strict=True))
        print(
            f"token {len(long)}: {statistics.median(speeds[0]):.1f} tok/s, of a fresh answer with a full window "
            f"{statistics.median(speeds[1]):.1f}; {len(ratios)} paired ratios: median {statistics.median(ratios):.4f}, "
            f"half of them from {ratios[len(ratios) // 4]:.3f} to {ratios[-1 - len(ratios) // 4]:.3f}"
        )
        return facts | {"old_of_fresh": statistics.median(ratios)}


def answer(
    llm: LLM, prompt: list[int], arguments: argparse.Namespace, sampling: dict[str, Any]
) -> tuple[list[int], dict[str, float]]:
    """Write one long answer; says how much memory there is on the way, and how fast its ends were."""
    import psutil

    process, ids, times = psutil.Process(), array("i"), array("d")  # arrays: what is measured is not their memory
    memory: list[float] = []
    marks = [mark for mark in MARKS if mark < arguments.tokens] + [arguments.tokens]
    for event in llm.stream(prompt, max_tokens=arguments.tokens, seed=1, **sampling):
        if isinstance(event, TextDelta):
            ids.extend(event.ids)
            times.extend([time.perf_counter()] * len(event.ids))
            if len(ids) >= marks[0]:
                memory.append(process.memory_info().rss / 1e6)
                print(
                    f"token {marks.pop(0):6}: process {memory[-1]:.1f} MB, KV "
                    f"{sum(llm.memory().kv.values()) / 1e6:.1f} MB",
                    flush=True,
                )
    first, last = (999 / (times[at + 999] - times[at]) for at in (arguments.window, len(times) - 1000))
    print(
        f"{len(ids)} tokens; the first thousand with a full window {first:.1f} tok/s, the last {last:.1f}: "
        f"{last / first:.4f}; all {(len(times) - 1) / (times[-1] - times[0]):.1f} tok/s",
        flush=True,
    )
    facts = {
        "tokens": float(len(ids)),
        "first": first,
        "last": last,
        "last_of_first": last / first,
        "grown_mb": memory[-1] - memory[1],
    }
    return ids.tolist(), facts | {"kv_mb": sum(llm.memory().kv.values()) / 1e6, "memory_mb": memory[-1]}


def main() -> None:
    """Run one of both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["segments", "generate"])
    parser.add_argument("model")
    parser.add_argument("--window", type=int, default=1024)
    parser.add_argument("--sinks", type=int, default=4)
    parser.add_argument("--kv", default="f16")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--windows", type=int, default=5, help="how many windows long the text is")
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--samples", type=int, default=20, help="windows to compute from scratch")
    parser.add_argument("--file", type=argparse.FileType("r", encoding="utf-8"), help="another text")
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--pieces", type=int, default=40, help="hundreds of tokens of each answer at the end")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--speculate", default="auto", help="off: the same work for every token")
    arguments = parser.parse_args()
    facts = (segments if arguments.what == "segments" else generate)(arguments)
    if arguments.json:
        arguments.json.write_text(json.dumps(facts), encoding="utf-8")


if __name__ == "__main__":
    main()

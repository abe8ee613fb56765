"""Measure models on this machine's CPU: tokens per second, and the share of what its memory allows.

    python bench/cpu.py model=smollm2:135m other=gemma3:270m relu=FILE dense=FILE [--threads 1 2] [--rounds 3]

Each is a name and a model; one that is named `dense` computes all neurons of a ReLU model. Rounds go over all models
and thread counts in turn, so that a busy moment of the machine hits all alike; figures are medians of all samples. The
memory's figure is the best of all runs with as many threads.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from command import run_bench

COLUMNS = ("prefill_samples", "decode_samples")
SAMPLES = 3  # of a round


def measure(name: str, model: str, threads: int) -> dict[str, Any]:
    """One run of `localllm bench`."""
    mode = ["--mode", "exact"] if name == "dense" else []
    found = run_bench(model, "-t", str(threads), "-r", str(SAMPLES), *mode)
    return {"name": name, **found, "model": Path(model).name}


def merge(runs: list[dict[str, Any]], bandwidth: float) -> dict[str, Any]:
    """Medians over the samples of all rounds."""
    result = dict(runs[-1])
    for column in COLUMNS:
        result[column] = [sample for run in runs for sample in run[column]]
    prefill, decode = (statistics.median(result[column]) for column in COLUMNS)
    result |= {"prefill_tokens_per_second": prefill, "decode_tokens_per_second": decode, "memory_bandwidth": bandwidth}
    result["memory_bandwidth_fraction"] = decode * result["weight_bytes_per_token"] / bandwidth
    return result


def main() -> None:
    """Run, merge, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="NAME=MODEL")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    named = [entry.split("=", 1) for entry in options.models]
    runs: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for _ in range(options.rounds):
        for name, model in named:
            for threads in options.threads:
                runs.setdefault((name, threads), []).append(measure(name, model, threads))
    best = {
        threads: max(run["memory_bandwidth"] for own in runs.values() for run in own if run["threads"] == threads)
        for threads in options.threads
    }
    results = [merge(samples, best[threads]) for (_, threads), samples in runs.items()]
    for facts in results:
        print(
            f"{facts['name']:8} {facts['model']:40} {facts['threads']} threads: prompt "
            f"{facts['prefill_tokens_per_second']:6,.0f} tok/s, answer {facts['decode_tokens_per_second']:4.0f} tok/s, "
            f"{facts['memory_bandwidth_fraction']:.0%} of {facts['memory_bandwidth'] / 1e9:.1f} GB/s"
        )
    if options.json:
        options.json.write_text(json.dumps(results), encoding="utf-8")


if __name__ == "__main__":
    main()

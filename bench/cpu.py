"""Measure models on this machine's CPU and write what docs/benchmarks.md shows.

    python bench/cpu.py smollm2:135m gemma3:270m [--threads 1 2] [--rounds 3] [--output docs/benchmarks.md]

Rounds go over all models and thread counts in turn, so that a busy moment of the machine hits all alike; the table has
the median of all samples. Beside tokens per second it gives the share of the machine's measured read bandwidth.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

COLUMNS = ("prefill_samples", "decode_samples")


def measure(model: str, threads: int, arguments: list[str]) -> dict[str, Any]:
    """One run of `localllm bench`."""
    command = [sys.executable, "-m", "localllm", "bench", model, "-t", str(threads), "-r", "3", "--json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


def merge(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over the samples of all rounds."""
    result = dict(runs[-1])
    for column in COLUMNS:
        result[column] = [sample for run in runs for sample in run[column]]
    prefill, decode = (statistics.median(result[column]) for column in COLUMNS)
    bandwidth = max(run["memory_bandwidth"] for run in runs)
    result |= {"prefill_tokens_per_second": prefill, "decode_tokens_per_second": decode, "memory_bandwidth": bandwidth}
    result["memory_bandwidth_fraction"] = decode * result["weight_bytes_per_token"] / bandwidth
    return result


def table(results: list[dict[str, Any]], processor: str) -> str:
    """The page."""
    lines = [
        "# Benchmarks",
        "",
        f"Measured on {datetime.date.today()} on: {processor}. Command: `python {' '.join(sys.argv)}`.",
        "Prefill of 512 tokens and decode of 128 tokens, f16 KV, medians; the share is that of decoding in the read",
        "bandwidth that `numpy.max` reaches with as many threads in the same run (weights only, no KV).",
        "",
        "| model | threads | prefill tok/s | decode tok/s | MB a token | GB/s | share of bandwidth |",
        "|---|---|---|---|---|---|---|",
    ]
    for facts in results:
        used = facts["decode_tokens_per_second"] * facts["weight_bytes_per_token"]
        lines.append(
            f"| {facts['model']} | {facts['threads']} | {facts['prefill_tokens_per_second']:.0f} "
            f"| {facts['decode_tokens_per_second']:.0f} | {facts['weight_bytes_per_token'] / 1e6:.1f} "
            f"| {used / 1e9:.1f} | {facts['memory_bandwidth_fraction']:.0%} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run, merge, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--json", type=Path, help="also write every figure here")
    options = parser.parse_args()
    runs: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for _ in range(options.rounds):
        for model in options.models:
            for threads in options.threads:
                runs.setdefault((model, threads), []).append(measure(model, threads, []))
    results = [merge(samples) for samples in runs.values()]
    doctor = subprocess.run(
        [sys.executable, "-m", "localllm", "doctor", "--quick", "--json"], capture_output=True, text=True, check=True
    )
    facts = json.loads(doctor.stdout)
    processor = f"{facts['processor']}, {facts['cores']} cores, {facts['instruction_set']}"
    page = table(results, processor)
    if options.output:
        options.output.write_text(page, encoding="utf-8")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1), encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main()

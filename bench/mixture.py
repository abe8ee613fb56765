"""How fast a mixture of experts decodes on the CPU, against what its active bytes would take to read.

    python bench/mixture.py [--layers 3] [--threads 1 2] [--rounds 5] [--json FILE]

Layers in the shape of a 30B model with 128 experts of which 8 are chosen, random Q4_0 weights with skewed routing, and
a small vocabulary. Only the experts that are chosen count, and the memory's figure is measured in the same run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from localllm.benchmark import measure_memory_bandwidth, weight_bytes_per_token
from localllm.kernels.executor import ExecutorOptions
from localllm.kernels.registry import open_executor
from localllm.kernels.single_sequence import allocate_for, simple_step

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

PIECE = 48  # tokens of a sample


def main() -> None:
    """Measure and print."""
    from hybrid_models import FULL, mixture_model

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    sizes = replace(FULL, mixture=replace(FULL.mixture, vocabulary=8192))
    spec = mixture_model(sizes, options.layers)
    active = weight_bytes_per_token(spec)
    print(f"{options.layers} layers, {sizes.experts} experts, {active / 1e6:.1f} MB of weights a token")
    facts = {}
    for threads in options.threads:
        executor = open_executor(spec, "cpu", ExecutorOptions(threads=threads))
        allocate_for(executor, PIECE, "f16")
        samples = []
        for _ in range(options.rounds + 1):
            began = time.perf_counter()
            for position in range(PIECE):
                executor.forward(simple_step(executor.layout, np.array([7 + 11 * position]), position))
            samples.append(PIECE / (time.perf_counter() - began))
        executor.close()
        rate, bandwidth = statistics.median(samples[1:]), measure_memory_bandwidth(threads)
        facts[f"share_{threads}"] = rate * active / bandwidth
        print(
            f"{threads} threads: {rate:.0f} tok/s, {rate * active / 1e9:.1f} GB/s, {facts[f'share_{threads}']:.0%} of "
            f"{bandwidth / 1e9:.1f}"
        )
    if options.json:
        options.json.write_text(json.dumps(facts), encoding="utf-8")


if __name__ == "__main__":
    main()

"""What a step that verifies guesses costs: steps of 1, 2, 4, 8... rows of one sequence, relative to one row.

    python scripts/verify_benchmark.py [--device cpu|cuda|hybrid] [--shape 8b] [--quant q4_0] [--layers 4] [--share 0.5]

A model of random weights. With fewer layers than the shape has, it is measured with half of them too and the whole
model is told from the difference. On `hybrid`, `--share` of the weights are on the card, and the CPU's half of a step
is measured alone too. Numbers of rows take turns, so that a busy moment of the machine hits all alike.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from localllm.kernels.cpu.executor import CpuExecutor
from localllm.kernels.executor import ExecutorOptions
from localllm.kernels.single_sequence import allocate_for, chunks, simple_step

sys.path.insert(0, str(Path(__file__).parent))

if TYPE_CHECKING:
    from collections.abc import Sequence

    from localllm.kernels.executor import Executor
    from localllm.kernels.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Verified:
    """Seconds of a step by its rows: of the whole step, and of the CPU's half alone where there is one."""

    step: dict[int, float]
    cold: dict[int, float]


def steps(executor: Executor, rows: Sequence[int], context: int, rounds: int) -> dict[int, float]:
    """Median seconds of a step of each number of rows behind `context` tokens; every row gives logits."""
    allocate_for(executor, context + max(rows), "f16")
    random = np.random.default_rng(0)
    tokens = random.integers(0, executor.spec.vocabulary_size, context + max(rows))
    for start, stop in chunks(0, context, executor.max_rows):
        executor.forward(simple_step(executor.layout, tokens[start:stop], start))
    samples: dict[int, list[float]] = {count: [] for count in rows}
    for turn in range(rounds + 1):
        for count in rows:
            step = simple_step(
                executor.layout,
                tokens[context : context + count],
                context,
                output_rows=np.arange(count, dtype=np.int32),
            )
            began = time.perf_counter()
            executor.forward(step)
            if turn:
                samples[count].append(time.perf_counter() - began)
    return {count: statistics.median(own) for count, own in samples.items()}


def measure(spec: ModelSpec, rows: Sequence[int], given: argparse.Namespace) -> Verified:
    """Load on the device that is asked for, and measure."""
    options = ExecutorOptions(threads=given.threads, max_rows=max(64, *rows))
    if given.device == "hybrid":
        from localllm.kernels.hybrid.executor import HybridExecutor
        from localllm.kernels.hybrid.gpu_device import GpuDevice
        from localllm.kernels.hybrid.placement import uniform_placement

        hybrid = HybridExecutor(spec, uniform_placement(spec, given.share), GpuDevice, options)
        try:
            found = steps(hybrid, rows, given.context, given.rounds)
            cold = {count: statistics.median(hybrid.cold_seconds(given.rounds, count)) for count in rows}
        finally:
            hybrid.close()
        return Verified(found, cold)
    executor: Executor
    if given.device == "cuda":
        from localllm.kernels.gpu.executor import GpuExecutor

        executor = GpuExecutor(spec, options)
    else:
        executor = CpuExecutor(spec, options)
    try:
        return Verified(steps(executor, rows, given.context, given.rounds), {})
    finally:
        executor.close()


def whole(few: dict[int, float], half: dict[int, float], layers: int, wanted: int) -> dict[int, float]:
    """Seconds of a model of `wanted` layers, from those of `layers` and of half as many."""
    more = (wanted - layers) / (layers - layers // 2)
    return {rows: seconds + more * (seconds - half[rows]) for rows, seconds in few.items()}


def say(name: str, seconds: dict[int, float]) -> None:
    """A line of a table."""
    one = seconds[min(seconds)]
    parts = (f"{count}: {own * 1e3:.2f} ms ({own / one:.2f})" for count, own in seconds.items())
    print(f"{name}: " + ", ".join(parts), flush=True)


def main() -> None:
    """Measure and print."""
    from random_models import SHAPES, random_model

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", choices=("cpu", "cuda", "hybrid"), default="cpu")
    parser.add_argument("--shape", choices=tuple(SHAPES), default="8b")
    parser.add_argument("--quant", default="q4_0")
    parser.add_argument("--layers", type=int, help="at least 2; all that the shape has, if not given")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--share", type=float, default=0.5)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    shape = SHAPES[given.shape]
    layers = min(given.layers or shape.layers, shape.layers)
    found = measure(random_model(shape, given.quant, layers), given.rows, given)
    say(f"{given.shape} {given.quant}, {given.device}, {layers} layers", found.step)
    if found.cold:
        say("  the CPU's half alone", found.cold)
    facts = {f"rows_{count}": seconds / found.step[min(found.step)] for count, seconds in found.step.items()}
    if layers < shape.layers:
        half = measure(random_model(shape, given.quant, layers // 2), given.rows, given)
        told = whole(found.step, half.step, layers, shape.layers)
        say(f"  of {shape.layers} layers, as told from these", told)
        facts = {f"rows_{count}": seconds / told[min(told)] for count, seconds in told.items()}
    if given.json:
        given.json.write_text(json.dumps(facts), encoding="utf-8")


if __name__ == "__main__":
    main()

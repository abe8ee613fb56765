"""Decode, batch, prefill and long contexts of random-weight models on a real card, against what its memory allows.

    python scripts/gpu_benchmark.py [--models q4_0,q4_k_m] [--only decode,batch,prefill,context] [--repeats 5]

Kernels are compiled first, by processes side by side; weights come from a seed. Prints one line a measurement.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time

import numpy as np
from random_models import SHAPES, random_model

from localllm.kernels.executor import ExecutorOptions
from localllm.kernels.gpu.executor import GpuExecutor, GpuOptions
from localllm.kernels.kv_layout import PAGE_SIZE
from localllm.kernels.single_sequence import simple_step
from localllm.kernels.step import GroupTables, Step


def batch_step(executor: GpuExecutor, rows: int, context: int) -> Step:
    """One new token for each of `rows` sequences that hold `context` tokens already; all pages are their own."""
    pages = -(-(context + 1) // PAGE_SIZE)
    own = np.arange(rows * pages, dtype=np.int32).reshape(rows, pages)
    tables = GroupTables(
        own,
        np.zeros(rows, np.int32),
        np.zeros(rows, np.int64),
        own[:, context // PAGE_SIZE].astype(np.int64) * PAGE_SIZE + context % PAGE_SIZE,
        np.full(rows, context, np.int32),
    )
    row = np.arange(rows, dtype=np.int32)
    positions = np.full(rows, context, np.int64)
    return Step(row + 5, positions, row, (tables,) * len(executor.layout.groups), row)


def median(executor: GpuExecutor, step: Step, repeats: int) -> tuple[float, float]:
    """(seconds on the card, seconds of a whole `forward`), medians."""
    executor.forward(step)
    card = statistics.median(executor.card_seconds(step, 20) for _ in range(repeats))
    whole = []
    for _ in range(repeats * 4):
        start = time.perf_counter()
        executor.forward(step)
        whole.append(time.perf_counter() - start)
    return card, statistics.median(whole)


def main() -> None:
    """Compile, then measure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", default="8b:q4_0,8b:q4_k_m,135m:q4_1")
    parser.add_argument("--arithmetic", default="int8,float32")
    parser.add_argument("--only", default="decode,batch,prefill,context")
    parser.add_argument("--rows", default="2,4,8,32")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--compile", default="")
    parser.add_argument("--compile-only", action="store_true")
    parser.add_argument("--workers", type=int, default=14)
    given = parser.parse_args()
    wanted = given.only.split(",")
    if given.compile:
        compile_one(given.compile)
        return
    jobs = [
        f"{model}:{arithmetic}:{kind}:{count}"
        for model in given.models.split(",")
        for arithmetic in given.arithmetic.split(",")
        for kind in wanted
        for count in (sorted(given.rows.split(","), key=int, reverse=True) if kind == "batch" else "1")
    ]
    start = time.time()
    compile_all(jobs, given.workers)
    print(f"compiled in {time.time() - start:.0f} s", flush=True)
    for model in () if given.compile_only else given.models.split(","):
        for arithmetic in given.arithmetic.split(","):
            measure(model, arithmetic, wanted, [int(r) for r in given.rows.split(",")], given.repeats)


def compile_all(jobs: list[str], workers: int) -> None:
    """Fill the kernel cache: each job in a process of its own, with models of one or two layers."""
    running: list[subprocess.Popen[bytes]] = []
    for job in jobs:
        while len([p for p in running if p.poll() is None]) >= workers:
            time.sleep(0.1)
        running.append(subprocess.Popen([sys.executable, __file__, "--compile", job]))
    failed = [job for job, process in zip(jobs, running, strict=True) if process.wait()]
    if failed:
        print("failed to compile:", ", ".join(failed), flush=True)


def make(model: str, arithmetic: str, layers: int | None, rows: int, context: int) -> GpuExecutor:
    """An executor with room for `rows` sequences of `context` tokens."""
    shape, recipe = model.split(":")
    spec = random_model(SHAPES[shape], recipe, layers)
    executor = GpuExecutor(spec, ExecutorOptions(max_rows=512), GpuOptions(arithmetic=arithmetic))  # type: ignore[arg-type]
    pages = rows * -(-(context + 1) // PAGE_SIZE)
    executor.allocate_kv((max(pages, 64),), "f16")
    return executor


def cases(wanted: str, rows: list[int]) -> list[tuple[int, int]]:
    """(rows, context) of a kind of measurement; context -1: a prefill of that many rows."""
    return {
        "decode": [(1, 256)],
        "batch": [(count, 256) for count in rows],
        "prefill": [(512, -1)],
        "context": [(1, 32768)],
    }[wanted]


def step_of(executor: GpuExecutor, rows: int, context: int) -> Step:
    """The step of a case."""
    if context < 0:
        return simple_step(executor.layout, np.arange(rows) % 1000, output_rows=np.array([rows - 1], np.int32))
    return batch_step(executor, rows, context)


def compile_one(job: str) -> None:
    """Run every case of a job once."""
    shape, recipe, arithmetic, wanted, rows = job.split(":")
    for count, context in cases(wanted, [int(r) for r in rows.split(",")]):
        executor = make(f"{shape}:{recipe}", arithmetic, 8 if recipe == "q4_k_m" else 1, count, max(context, 512))
        executor.forward(step_of(executor, count, context))
        executor.close()


def measure(model: str, arithmetic: str, wanted: list[str], rows: list[int], repeats: int) -> None:
    """Print a line for every case of one model."""
    start = time.time()
    executor = make(model, arithmetic, None, max(rows), 1024 if "context" not in wanted else 32768 // max(rows) + 1024)
    weights = sum(executor.memory().weights.values())
    print(
        f"{model} {arithmetic}: loaded {weights / 1e9:.2f} GB in {time.time() - start:.1f} s; {executor.describe()}",
        flush=True,
    )
    base = 0.0
    per_token = 2 * sum(executor.layout.values_per_token(group) for group in range(len(executor.layout.groups)))
    short = median(executor, batch_step(executor, 1, 16), repeats)[0] if "context" in wanted else 0.0
    for kind in wanted:
        for count, context in cases(kind, rows):
            if context > 1024:
                pages = -(-(context + 1) // PAGE_SIZE)
                executor.allocate_kv((pages,), "f16")
            try:
                card, whole = median(executor, step_of(executor, count, context), repeats)
            except Exception as error:
                print(f"  {kind} rows {count} context {context}: FAILED {error!r}"[:400], flush=True)
                continue
            rate = count / card
            base = base or rate
            facts = {
                "model": model,
                "arithmetic": arithmetic,
                "kind": kind,
                "rows": count,
                "context": context,
                "card_ms": round(card * 1e3, 4),
                "forward_ms": round(whole * 1e3, 4),
                "tokens_per_second": round(rate, 1),
                "of_batch_1": round(rate / base, 2),
                "weights_gb_per_s": round(weights / card / 1e9, 1),
            }
            if context > 1024:  # what the keys and values of the context add to a step without any
                facts["attention_gb_per_s"] = round(per_token * context / (card - short) / 1e9, 1)
            print("  " + json.dumps(facts), flush=True)
    executor.close()


if __name__ == "__main__":
    main()

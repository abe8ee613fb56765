"""One row of a small model on a card against a graph of as many empty kernels: `python scripts/graph_floor.py MODEL`.

A row of JSON: milliseconds of the step on the card, of a whole `forward`, of the empty graph, how many kernels there
are, and the bytes of weights, which a card also has to read.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from gpu_benchmark import batch_step, median
from triton.runtime.jit import JITFunction

from localllm.gguf_io import open_gguf
from localllm.kernels.executor import ExecutorOptions
from localllm.kernels.gpu.executor import GpuExecutor, GpuOptions
from localllm.kernels.gpu.programs.common import start_early, wait_for_inputs
from localllm.models import load_spec

if TYPE_CHECKING:
    from localllm.kernels.step import Step

ROUNDS, REPLAYS = 7, 20


@triton.jit  # type: ignore[untyped-decorator]
def empty(PDL: tl.constexpr):  # type: ignore[no-untyped-def]
    """What every kernel does at least: begin early, wait for those before it."""
    start_early(PDL)
    wait_for_inputs(PDL)


def kernels_of(executor: GpuExecutor, step: Step) -> int:
    """How many kernels a step starts: its first `forward` starts each twice, once to record them."""
    real, count = JITFunction.run, 0

    def counted(self: Any, *arguments: Any, **more: Any) -> Any:
        nonlocal count
        count += 1
        return real(self, *arguments, **more)

    JITFunction.run = counted
    try:
        executor.forward(step)
    finally:
        JITFunction.run = real
    return count // 2


def floor(executor: GpuExecutor, count: int) -> float:
    """Milliseconds of a graph of so many empty kernels."""
    stream, early = torch.cuda.Stream(), executor.gpu.early(4)
    with torch.cuda.stream(stream):
        empty[(1,)](**early)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(count):
                empty[(1,)](**early)
    times = []
    for _ in range(ROUNDS + 1):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(REPLAYS):
            graph.replay()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) / REPLAYS)
    return statistics.median(times[1:])


def main() -> None:
    """Measure and print."""
    with open_gguf(Path(sys.argv[1])) as file:
        executor = GpuExecutor(load_spec(file), ExecutorOptions(max_rows=64), GpuOptions())
        executor.allocate_kv((64,) * len(executor.layout.groups), "f16")
        step = batch_step(executor, 1, 256)
        count = kernels_of(executor, step)
        card, whole = median(executor, step, ROUNDS)
        facts = {
            "card_ms": 1e3 * card,
            "forward_ms": 1e3 * whole,
            "kernels": count,
            "empty_ms": floor(executor, count),
            "weight_bytes": sum(executor.memory().weights.values()),
        }
        executor.close()
    print(json.dumps(facts))


if __name__ == "__main__":
    main()

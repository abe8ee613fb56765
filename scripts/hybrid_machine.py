"""The machine of the hybrid benchmark: how fast it moves bytes, and whether a model keeps to a budget of its card."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from localllm.benchmark import measure_memory_bandwidth, measure_product_bandwidth
from localllm.kernels.gpu.device import open_gpu, short_type
from localllm.kernels.gpu.executor import GpuExecutor
from localllm.kernels.gpu.kv_pools import cache_bytes
from localllm.kernels.gpu.planning import plan_memory
from localllm.kernels.gpu.vector_products import VectorProducts
from localllm.kernels.hybrid.opening import open_hybrid
from localllm.kernels.kv_layout import KVLayout
from localllm.kernels.single_sequence import pages_for, simple_step
from localllm.placement.machine import BARRIER, CPU_EFFICIENCY, CPU_MULTIPLICATIONS, GPU_EFFICIENCY, Machine

if TYPE_CHECKING:
    from collections.abc import Callable

    from localllm.kernels.executor import Executor, ExecutorOptions
    from localllm.kernels.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Taken:
    """Bytes of the card: what the executor says it uses, and the most that PyTorch gave out and held at any time."""

    used: int
    given: int
    held: int
    kind: str  # what the model ran on

    @property
    def most(self) -> int:
        """The largest of them."""
        return max(self.used, self.given, self.held)

    def __str__(self) -> str:
        given, held = self.given / 1e6, self.held / 1e6
        return f"{self.used / 1e6:.1f} MB used, at most {given:.1f} given out and {held:.1f} held"


def measure(say: Callable[..., None], threads: int, *, quick: bool) -> Machine:
    """This machine as the cost model wants it, with the bandwidths of the card and of its link measured too."""
    read, bandwidth = (
        measured(threads, repetitions=1 if quick else 3)
        for measured in (measure_memory_bandwidth, measure_product_bandwidth)
    )
    card, link = (1e12, 1e10) if quick else (_card_bandwidth(), _link_bandwidth())
    rates = f"of weights in a product; read {read / 1e9:.1f}, card {card / 1e9:.0f}, link {link / 1e9:.1f} GB/s"
    numbers = {"cpu": bandwidth, "read": read, "card": card, "link": link}
    say(f"bandwidth, {threads} threads", f"{bandwidth / 1e9:.1f} GB/s", rates, **numbers)
    return Machine(
        cpu_bandwidth=bandwidth * CPU_EFFICIENCY,
        cpu_multiplications=CPU_MULTIPLICATIONS * threads,
        cpu_bytes=1 << 37,
        gpu_bandwidth=card * GPU_EFFICIENCY,
        link_bandwidth=link,
        barrier=BARRIER * threads,
    )


def _card_bandwidth() -> float:
    """Bytes a second that the card reads and writes."""
    source = torch.ones(1 << 28, dtype=torch.float32, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / _timed(lambda: target.copy_(source))


def _link_bandwidth() -> float:
    """Bytes a second from page-locked memory to the card."""
    source = torch.ones(1 << 26, dtype=torch.float32, pin_memory=True)
    target = torch.empty(1 << 26, dtype=torch.float32, device="cuda")
    return source.nbytes / _timed(lambda: target.copy_(source, non_blocking=True))


def _timed(run: Callable[[], object]) -> float:
    samples = []
    for _ in range(4):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        stop.record()
        stop.synchronize()
        samples.append(float(start.elapsed_time(stop)) / 1e3)
    return min(samples)


def try_budgets(
    say: Callable[..., None], name: str, spec: ModelSpec, options: ExecutorOptions, context: int, steps: int
) -> None:
    """Rows of `say`: budgets from nothing to the whole model, what each run takes of the card, and on what it runs."""
    gpu, layout = open_gpu(), KVLayout.of(spec)
    pages = pages_for(layout, context + 16)
    given = replace(options, kv_pages=pages, main_memory=1 << 36)
    vectors, short = VectorProducts(gpu, gpu.arithmetic), short_type(gpu)
    full = plan_memory(spec, gpu, vectors, given.max_rows, short)[0].total + cache_bytes(gpu, layout, given)
    over = _prompts(say, name, spec, given, context) if steps > 2 else []
    for index in reversed(range(steps)):
        budget = full * index // max(1, steps - 1)
        taken = _within(spec, replace(given, vram=budget), pages, 9)
        over.append(taken.most - budget)
        _tell(say, f"budgets, {name}: {budget / 1e6:.1f} MB", budget, taken)
    wrong, what = sum(more > 0 for more in over), f"budgets, {name}: {steps} from 0 to {full / 1e6:.0f} MB"
    say(what, f"{wrong} too large", f"of {len(over)}; nearest {max(over)} bytes", worst=max(over))


def _tell(say: Callable[..., None], what: str, budget: int, taken: Taken) -> None:
    numbers = {"budget": budget, "used": taken.used, "most": taken.most}
    say(what, taken.kind, str(taken), **numbers)


def _prompts(say: Callable[..., None], name: str, spec: ModelSpec, options: ExecutorOptions, context: int) -> list[int]:
    """Steps of many rows, divided and on the card alone; returns by how many bytes they took too much."""
    rows, gpu, layout, over = (32 if options.max_rows < 16 else 512), open_gpu(), KVLayout.of(spec), []
    pages = pages_for(layout, max(context, rows) + 16)
    given = replace(options, max_rows=rows, kv_pages=pages)
    full = plan_memory(spec, gpu, VectorProducts(gpu, gpu.arithmetic), rows, short_type(gpu))[0].total
    whole = full + cache_bytes(gpu, layout, given)
    for tenths, opened in ((9, open_hybrid), (10, GpuExecutor)):
        budget = whole * tenths // 10
        taken = _within(spec, replace(given, vram=budget), pages, rows, opened)
        _tell(say, f"budgets, {name}: {rows} rows in {budget / 1e6:.1f} MB", budget, taken)
        over.append(taken.most - budget)
    return over


def _within(
    spec: ModelSpec,
    options: ExecutorOptions,
    pages: tuple[int, ...],
    rows: int,
    opened: Callable[[ModelSpec, ExecutorOptions], Executor] = open_hybrid,
) -> Taken:
    """What a model takes of the card, and took at most while it was loaded and run."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    given, held = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    made = opened(spec, options)
    made.allocate_kv(pages, "f16", (0,) * len(made.layout.groups))
    for _ in range(2):
        step = simple_step(made.layout, np.arange(rows, dtype=np.int32) % 8, output_rows=np.array([rows - 1]))
        made.forward(step)
    made.forward(simple_step(made.layout, np.array([7], np.int32), rows))
    memory = made.memory()
    used = sum(part.get("cuda", 0) for part in (memory.weights, memory.kv, memory.workspace))
    found = Taken(
        used,
        torch.cuda.max_memory_allocated() - given,
        torch.cuda.max_memory_reserved() - held,
        type(made).__name__,
    )
    made.close()
    return found

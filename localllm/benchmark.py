"""How fast a model runs here, beside what this machine's memory allows."""

from __future__ import annotations

import resource
import statistics
import sys
import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from localllm.kernels.kv_layout import KVLayout
from localllm.kernels.single_sequence import allocate_for, chunks, simple_step
from localllm.kernels.spec import LatentAttention, MixtureOfExperts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from localllm.gguf_io import Tensor
    from localllm.kernels.executor import Executor
    from localllm.kernels.kv_layout import KVType
    from localllm.kernels.spec import Attention, FeedForward, Linear, ModelSpec

PROBE_BYTES = 256 * 2**20  # per thread: far larger than any cache


@dataclass(frozen=True, slots=True)
class BenchmarkResult:
    """Medians over the repetitions, with every sample (tokens per second) kept."""

    prompt_tokens: int
    decode_tokens: int
    prefill_samples: tuple[float, ...]
    decode_samples: tuple[float, ...]
    weight_bytes_per_token: int

    @property
    def prefill_tokens_per_second(self) -> float:
        """Median speed of reading a prompt."""
        return statistics.median(self.prefill_samples) if self.prefill_samples else 0.0

    @property
    def decode_tokens_per_second(self) -> float:
        """Median speed of writing, one token a step."""
        return statistics.median(self.decode_samples) if self.decode_samples else 0.0


def weight_bytes_per_token(spec: ModelSpec) -> int:
    """Bytes of weights that one decoded token needs: all matrices once, of the experts only the chosen ones.

    A lower bound of the traffic; the embedding table counts as one row, the head in full.
    """
    total = sum(tensor.nbytes for layer in spec.layers for tensor in _attention_tensors(layer.attention))
    for layer in spec.layers:
        block = layer.feed_forward
        if isinstance(block, MixtureOfExperts):
            stacks = sum(linear.weight.nbytes for linear in (block.gate, block.up, block.down) if linear is not None)
            total += block.router.weight.nbytes + stacks * block.top_k // block.experts
            if block.shared is not None:
                total += sum(_feed_forward_bytes(block.shared))
        else:
            total += sum(_feed_forward_bytes(block))
    return total + spec.head.linear.weight.nbytes


def _feed_forward_bytes(block: FeedForward) -> Iterator[int]:
    return (linear.weight.nbytes for linear in (block.gate, block.up, block.down) if linear is not None)


def _attention_tensors(attention: Attention | LatentAttention) -> Iterator[Tensor]:
    linears: list[Linear] = [attention.output]
    if isinstance(attention, LatentAttention):
        query = attention.query
        linears += [query[0], query[2]] if isinstance(query, tuple) else [query]
        linears.append(attention.key_value_down)
        yield attention.key_up
        yield attention.value_up
    else:
        linears += [attention.query, attention.key, attention.value]
    for linear in linears:
        yield linear.weight


def run_benchmark(
    executor: Executor,
    *,
    prompt_tokens: int,
    decode_tokens: int,
    repetitions: int,
    depth: int = 0,
    kv_type: KVType = "f16",
    progress: Callable[[int], None] | None = None,
) -> BenchmarkResult:
    """Time `repetitions` prompts of `prompt_tokens` and greedy decodes of `decode_tokens` after `depth` cached tokens.

    The first round only warms up. Token ids are a fixed sequence; each decoded token feeds the next step.
    """
    vocabulary = executor.spec.vocabulary_size
    prompt = np.arange(100, 100 + max(prompt_tokens, depth, 1), dtype=np.int64) % vocabulary
    length = max(prompt_tokens, depth + decode_tokens, 1)
    layout = KVLayout.of(executor.spec)
    allocate_for(executor, length, kv_type)
    prefill, decode = [], []
    for repetition in range(repetitions + 1):
        if prompt_tokens:
            started = time.perf_counter()
            _prefill(executor, layout, prompt[:prompt_tokens], kv_type)
            prefill.append(prompt_tokens / (time.perf_counter() - started))
        if decode_tokens:
            token = _prefill(executor, layout, prompt[:depth], kv_type) if depth else int(prompt[0])
            started = time.perf_counter()
            for position in range(depth, depth + decode_tokens):
                step = simple_step(layout, [token], position, kv_type=kv_type)
                token = int(np.argmax(executor.forward(step)[0]))
            decode.append(decode_tokens / (time.perf_counter() - started))
        if progress is not None:
            progress(repetition)
    return BenchmarkResult(
        prompt_tokens, decode_tokens, tuple(prefill[1:]), tuple(decode[1:]), weight_bytes_per_token(executor.spec)
    )


def _prefill(executor: Executor, layout: KVLayout, tokens: np.ndarray, kv_type: KVType) -> int:
    """Run a prompt in chunks, the head for its last token only; returns the likeliest next token."""
    token = 0
    for start, stop in chunks(0, len(tokens), executor.max_rows, kv_type):
        last = stop == len(tokens)
        rows = np.array([stop - start - 1] if last else [], dtype=np.int32)
        logits = executor.forward(simple_step(layout, tokens[start:stop], start, output_rows=rows, kv_type=kv_type))
        if last:
            token = int(np.argmax(logits[0]))
    return token


def measure_memory_bandwidth(threads: int, *, repetitions: int = 5) -> float:
    """Bytes per second that `threads` threads read from memory together, at best (about 0.3 s)."""
    arrays = [np.ones(PROBE_BYTES, np.int8) for _ in range(threads)]
    return _at_best([partial(np.max, array) for array in arrays], PROBE_BYTES, repetitions)


def measure_product_bandwidth(threads: int, *, repetitions: int = 5) -> float:
    """Bytes per second of weights that `threads` threads multiply together, at best (about 0.3 s).

    The kernel is that of Q4_0, one row at a time: what decoding reads at most. Where cores are slow for the memory, as
    virtual ones are, it is far below `measure_memory_bandwidth`.
    """
    from localllm.gguf_io import QuantType, Tensor
    from localllm.kernels.cpu.compile import KernelCompiler
    from localllm.kernels.cpu.isa import choose_isa
    from localllm.kernels.cpu.product import TiledProduct

    rows, columns = 256, 4096
    rng = np.random.default_rng(0)
    blocks = rng.integers(0, 256, (rows, columns // 32, 18), dtype=np.uint8)
    blocks[..., :2] = np.full(1, 1e-3, np.float16).view(np.uint8)
    tensor = Tensor("probe", QuantType.Q4_0, (rows, columns), blocks.reshape(rows, -1))
    compiler = KernelCompiler(choose_isa())
    copies = max(1, PROBE_BYTES // 2 // tensor.nbytes)
    products = [TiledProduct(compiler, tensor, copies) for _ in range(threads)]
    vector = rng.standard_normal(columns).astype(np.float32)
    return _at_best([partial(product, vector) for product in products], products[0].nbytes, repetitions)


def _at_best(works: Sequence[Callable[[], object]], size: int, repetitions: int) -> float:
    """Bytes per second where every thread works through `size` bytes, in the mean of the times they take.

    They begin together, since starting sixteen threads takes a tenth of the whole time; and the slowest does not count
    alone, since in a model those that are done sooner take more of the work.
    """
    best = 0.0
    for _ in range(repetitions):
        began, ended = [0.0], [0.0] * len(works)

        def note(began: list[float] = began) -> None:
            began[0] = time.perf_counter()

        together = threading.Barrier(len(works), note)

        def one(index: int, ended: list[float] = ended, together: threading.Barrier = together) -> None:
            together.wait()
            works[index]()
            ended[index] = time.perf_counter()

        workers = [threading.Thread(target=one, args=(index,)) for index in range(len(works))]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        best = max(best, len(works) * size / (statistics.mean(ended) - began[0]))
    return best


def peak_memory() -> int:
    """Most bytes that this process has had resident so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024

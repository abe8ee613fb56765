"""Decode and prefill of ReLU models, sparse and turbo against exact, in alternating pieces of one process.

    python bench/sparse.py MODEL.gguf [--text FILE]      a model file; tokens of a text, one context
    python bench/sparse.py --shape 7b [--density 0.12]   three layers of that width, random Q4_0 weights

    python bench/sparse.py MODEL.gguf --turbo 0.02       calibrated on a built-in text, or on random tokens

For every piece of decoding all executors run the same tokens; the ratio of a pair is what is reported, as the median
over all pairs. Cycles are those of the first thread by kind of operation, for each token.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from localllm.gguf_io import QuantType, Tensor, open_gguf
from localllm.kernels.cpu.executor import CpuExecutor
from localllm.kernels.executor import ExecutorOptions
from localllm.kernels.single_sequence import allocate_for, simple_step
from localllm.kernels.spec import Activation, Attention, Embed, FeedForward, Head, Layer, Linear, ModelSpec, Norm, Rope

if TYPE_CHECKING:
    import numpy.typing as npt

    from localllm.kernels.executor import Mode
    from localllm.kernels.turbo import Turbo

    Tokens = npt.NDArray[np.int32]

PIECE = 16  # tokens that an executor decodes before it is the other's turn
SHAPES = {"7b": (4096, 11008, 32, 3), "small": (1024, 2816, 8, 6)}  # width, neurons, heads, layers


def random_model(shape: str, density: float) -> ModelSpec:
    """Random Q4_0 weights with gate biases that let a share `density` of the neurons fire."""
    width, neurons, heads, count = SHAPES[shape]
    rng = np.random.default_rng(3)

    def linear(rows: int, columns: int, bias: float | None = None) -> Linear:
        data = rng.integers(0, 256, (rows, columns // 32, 18), dtype=np.uint8)
        nibbles = data[..., 2:]  # 1 to 15, whose mean is no part of every product
        nibbles[(nibbles & 15) == 0] |= 8
        nibbles[(nibbles >> 4) == 0] |= 128
        data[..., :2] = np.full(1, 1 / (4.32 * columns**0.5), np.float16).view(np.uint8)
        weight = Tensor("random", QuantType.Q4_0, (rows, columns), data.reshape(rows, -1))
        if bias is None:
            return Linear(weight)
        values = np.full(rows, bias, np.float32)
        return Linear(weight, Tensor("bias", QuantType.F32, (rows,), values.view(np.uint8)))

    ones = np.ones(width, np.float32).view(np.uint8)
    norm = Norm(Tensor("norm", QuantType.F32, (width,), ones), 1e-5)
    size = width // heads
    rope = Rope(10000.0 ** -(np.arange(size // 2) / (size // 2)), False)
    threshold = statistics.NormalDist().inv_cdf(density)
    layers = []
    for _ in range(count):
        query, key, value, output = (linear(width, width) for _ in range(4))
        attention = Attention(norm, query, key, value, output, heads, heads, size, size, size**-0.5, rope)
        feed = FeedForward(
            norm, linear(neurons, width, threshold), linear(neurons, width), linear(width, neurons), Activation.RELU
        )
        layers.append(Layer(attention, feed))
    table = linear(256, width)
    return ModelSpec(
        "llama", f"random {shape}", 256, width, 4096, Embed(table.weight), tuple(layers), Head(norm, table)
    )


class Bench:
    """The executors over the same tokens."""

    def __init__(self, spec: ModelSpec, tokens: Tokens, threads: int, prompt: int, turbo: Turbo | None) -> None:
        self.tokens, self.prompt = tokens, prompt
        self.executors: dict[Mode, CpuExecutor] = {}
        modes: tuple[Mode, ...] = ("exact", "sparse") if turbo is None else ("exact", "sparse", "turbo")
        for mode in modes:
            executor = CpuExecutor(spec, ExecutorOptions(threads=threads, mode=mode, turbo=turbo))
            allocate_for(executor, len(tokens), "f16")
            self.executors[mode] = executor

    def prefill(self, mode: Mode) -> float:
        """Seconds for the prompt."""
        executor, began = self.executors[mode], time.perf_counter()
        last = np.array([self.prompt - 1], np.int32)
        executor.forward(simple_step(executor.layout, self.tokens[: self.prompt], output_rows=last))
        return time.perf_counter() - began

    def decode(self, mode: Mode, start: int) -> float:
        """Seconds for a piece of tokens one at a time."""
        executor = self.executors[mode]
        steps = [simple_step(executor.layout, self.tokens[i : i + 1], i) for i in range(start, start + PIECE)]
        began = time.perf_counter()
        for step in steps:
            executor.forward(step)
        return time.perf_counter() - began

    def run(self, rounds: int) -> dict[str, float]:
        """Alternate, and print; ratios against exact by part and mode."""
        parts = ("prefill", "decode")
        modes = list(self.executors)
        times: dict[tuple[str, Mode], list[float]] = {(part, mode): [] for part in parts for mode in modes}
        cycles: dict[Mode, dict[str, list[int]]] = {mode: {} for mode in modes}
        for turn in range(rounds + 1):
            for part in parts:
                starts = range(self.prompt, len(self.tokens) - PIECE + 1, PIECE) if part == "decode" else (0,)
                for start in starts:
                    for mode in modes if turn % 2 else modes[::-1]:
                        self.executors[mode].profile()
                        took = self.decode(mode, start) if part == "decode" else self.prefill(mode)
                        if not turn:
                            continue
                        times[part, mode].append(took)
                        if part == "decode":
                            for kind, count in self.executors[mode].profile().items():
                                cycles[mode].setdefault(kind, []).append(count // PIECE)
        found = {}
        for part, size in (("prefill", self.prompt), ("decode", PIECE)):
            exact = times[part, "exact"]
            for mode in modes:
                ratio = statistics.median(a / b for a, b in zip(exact, times[part, mode], strict=True))
                found[f"{part}_{mode}"] = ratio
                rate = size / statistics.median(times[part, mode])
                print(f"  {part:8} {mode:7} {rate:7.1f} tok/s, {ratio:.3f} of exact (n={len(exact)})")
        kinds = list(dict.fromkeys(kind for mode in modes for kind in cycles[mode]))
        for mode in modes:
            line = " ".join(f"{kind} {statistics.median(cycles[mode].get(kind, [0])) / 1e3:.0f}" for kind in kinds)
            print(f"  kilocycles {mode:7} {line}")
        return found

    def close(self) -> None:
        """End the threads."""
        for executor in self.executors.values():
            executor.close()


def fired(spec: ModelSpec, tokens: list[int]) -> dict[str, float]:
    """How many neurons a token leaves out, and what the hottest quarter of each layer makes, over a text."""
    from localllm.profiles import measure_profile

    executor = CpuExecutor(spec, ExecutorOptions(count_activations=True))
    found = measure_profile(executor, tokens, model="", context=1024)
    executor.close()
    facts = {
        "sparsity": statistics.mean(found.sparsity(layer) for layer in found.layers),
        "hot_share": found.coverage(0.26),
    }
    print(f"{facts['sparsity']:.1%} of the neurons are zero; the hottest 26% make {facts['hot_share']:.1%} of the rest")
    return facts


def main() -> None:
    """Load, run, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--shape", choices=sorted(SHAPES))
    parser.add_argument("--density", type=float, default=0.12)
    parser.add_argument("--text", type=Path)
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--decode", type=int, default=48)
    parser.add_argument("--turbo", type=float, metavar="LOSS", help="calibrate to this budget, and run it as well")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    count = options.prompt + options.decode
    facts: dict[str, float] = {}
    if options.model is None:
        spec = random_model(options.shape or "7b", options.density)
        tokens = np.random.default_rng(1).integers(0, 256, count).astype(np.int32)
        seen = [int(token) for token in tokens]
    else:
        from localllm.models import load_spec
        from localllm.profiles.text import TEXT
        from localllm.tokenizer import Tokenizer

        file = open_gguf(options.model)
        spec = load_spec(file)
        text = options.text.read_text("utf-8") if options.text else TEXT
        tokens = np.array(Tokenizer.from_gguf(file).encode(text)[:count], np.int32)
        seen = Tokenizer.from_gguf(file).encode(TEXT)
        facts |= fired(spec, seen)
    turbo = None
    if options.turbo is not None:
        from localllm.turbo.calibrate import calibrate

        record = calibrate(spec, seen, model="", budget=options.turbo)
        turbo = record.turbo
        print(f"turbo: {record.cost}")
        facts["turbo_percent"], facts["turbo_error"] = record.cost.percent, record.cost.error_percent
        for layer, own in record.facts.items():
            print(f"  layer {layer}: by {own.scores.value}, {own.kept:.1%} kept, {own.fired:.1%} fire")
    for threads in options.threads:
        print(f"{threads} threads, {options.prompt} tokens of prompt")
        bench = Bench(spec, tokens, threads, options.prompt, turbo)
        facts |= {f"{name}_{threads}": ratio for name, ratio in bench.run(options.rounds).items()}
        bench.close()
    if options.json:
        options.json.write_text(json.dumps(facts), encoding="utf-8")


if __name__ == "__main__":
    main()

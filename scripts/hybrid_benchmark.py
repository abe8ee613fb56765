"""Decoding of random-weight models with half of their weights on a card, against what the memories allow.

    python scripts/hybrid_benchmark.py [--only check,trip,dense,relu,mixture] [--layers 32] [--share 0.5] [--steps 64]

Needs a card. The ReLU model has the shape of the dense one; biases of its gates make 12% of the neurons fire, with a
skew as measured on real models: the hottest 26% make 63% of the activations.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from gpu_benchmark import SHAPES, random_model

from localllm.benchmark import measure_memory_bandwidth
from localllm.gguf_io import QuantType, Tensor
from localllm.kernels.executor import ExecutorOptions
from localllm.kernels.gpu.executor import GpuExecutor
from localllm.kernels.hybrid.executor import HybridExecutor
from localllm.kernels.hybrid.gpu_device import GpuDevice, fit_gpu
from localllm.kernels.hybrid.placement import LayerPlacement, Placement, uniform_placement, unit_count
from localllm.kernels.single_sequence import pages_for, simple_step
from localllm.kernels.spec import Activation, FeedForward, Gating, Linear, MixtureOfExperts

if TYPE_CHECKING:
    from localllm.kernels.executor import Executor
    from localllm.kernels.spec import ModelSpec

CONTEXT = 256
DENSITY, HOT, HOT_SHARE = 0.12, 0.26, 0.63


def rates(neurons: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """How often each neuron fires, the hottest first: a beta distribution of the measured mean and skew."""
    rng = np.random.default_rng(9)
    best: tuple[float, np.ndarray[tuple[int], np.dtype[np.float64]]] | None = None
    for spread in (0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0):
        found = np.sort(rng.beta(spread, spread * (1 - DENSITY) / DENSITY, neurons))[::-1]
        share = float(found[: int(HOT * neurons)].sum() / found.sum())
        if best is None or abs(share - HOT_SHARE) < abs(best[0] - HOT_SHARE):
            best = share, found
    assert best is not None
    return best[1]


def sparse_model(spec: ModelSpec) -> ModelSpec:
    """The same with ReLU gates that seldom fire, hot neurons first."""
    inner = spec.layers[0].feed_forward.up.weight.rows
    normal = statistics.NormalDist()
    deviation = 0.02 * 10 * 4.18
    bias = np.array([normal.inv_cdf(min(max(rate, 1e-6), 0.999)) for rate in rates(inner)]) * deviation
    tensor = Tensor("bias", QuantType.F32, (inner,), bias.astype(np.float32).view(np.uint8))
    layers = []
    for layer in spec.layers:
        block = layer.feed_forward
        assert isinstance(block, FeedForward)
        assert block.gate is not None
        gate = Linear(block.gate.weight, tensor)
        layers.append(replace(layer, feed_forward=replace(block, gate=gate, activation=Activation.RELU)))
    return replace(spec, layers=tuple(layers))


def centred(spec: ModelSpec) -> ModelSpec:
    """The same with nibbles 1 to 15, whose mean is zero: else every product would have one common part."""
    tensors = [spec.embed.table, spec.head.linear.weight]
    for layer in spec.layers[:1]:  # all layers share their bytes
        block = layer.attention, layer.feed_forward
        linears = [getattr(part, name) for part in block for name in NAMES if getattr(part, name, None) is not None]
        tensors += [linear.weight for linear in linears]
    for data in {id(tensor.data): tensor.data for tensor in tensors}.values():
        nibbles = data.reshape(len(data), -1, 18)[..., 2:]
        nibbles[(nibbles & 15) == 0] |= 8
        nibbles[(nibbles >> 4) == 0] |= 128
    return spec


NAMES = ("query", "key", "value", "output", "gate", "up", "down")


def mixture_model(layers: int) -> ModelSpec:
    """The shape of a 30B model with 128 experts of which 8 are chosen; biases of the router skew the choice."""
    shape = replace(SHAPES["8b"], hidden=2048, heads=32, kv_heads=4, inner=768, layers=layers, vocabulary=151936)
    spec = centred(random_model(shape, "q4_0"))
    rng, kind, count = np.random.default_rng(2), QuantType.Q4_0, EXPERTS

    def stack(rows: int, columns: int) -> Tensor:
        data = rng.integers(0, 256, (count, rows, columns // 32, 18), dtype=np.uint8)
        data[..., 2:][(data[..., 2:] & 15) == 0] |= 8
        data[..., 2:][(data[..., 2:] >> 4) == 0] |= 128
        data[..., :2] = np.full(1, 0.2 / columns**0.5, np.float16).view(np.uint8)
        return Tensor("experts", kind, (count, rows, columns), data.reshape(count, rows, -1))

    gate, up, down = Linear(stack(768, 2048)), Linear(stack(768, 2048)), Linear(stack(2048, 768))
    made = []
    for layer in spec.layers:
        router = (rng.standard_normal((count, 2048)) * 2048**-0.5).astype(np.float32)
        popular = rng.permutation(np.linspace(SKEW, -SKEW, count)).astype(np.float32)
        linear = Linear(
            Tensor("router", QuantType.F32, router.shape, router.view(np.uint8)),
            Tensor("bias", QuantType.F32, (count,), popular.view(np.uint8)),
        )
        block = MixtureOfExperts(
            layer.feed_forward.norm,
            linear,
            gate,
            up,
            down,
            count,
            8,
            Activation.SILU,
            Gating.SOFTMAX,
            normalise=True,
        )
        made.append(replace(layer, feed_forward=block))
    return replace(spec, layers=tuple(made))


EXPERTS, SKEW = 128, 1.5


def popularity(spec: ModelSpec) -> list[np.ndarray[tuple[int], np.dtype[np.float64]]]:
    """Per layer what a profile would say of its experts: the biases that skew the choice."""
    blocks = [layer.feed_forward for layer in spec.layers]
    return [
        block.router.bias.data.view(np.float32).astype(np.float64)
        for block in blocks
        if isinstance(block, MixtureOfExperts) and block.router.bias is not None
    ]


def mixture(options: ExecutorOptions, steps: int, layers: int) -> None:
    """A third of the experts on the card: the most popular of each layer, or whole layers."""
    spec = mixture_model(layers)
    third = EXPERTS // 3
    rates = popularity(spec)
    best = Placement(tuple(LayerPlacement(tuple(sorted(np.argsort(-rate)[:third].tolist()))) for rate in rates))
    everything, nothing = LayerPlacement(tuple(range(EXPERTS))), LayerPlacement(())
    on_card = layers * third // EXPERTS
    whole = Placement(tuple(nothing if index < layers - on_card else everything for index in range(layers)))
    for name, placement in (("popular experts", best), ("whole layers", whole)):
        measure(f"mixture, {name}", spec, options, placement, steps, vary=True)


def decode(executor: Executor, steps: int, *, vary: bool = False) -> float:
    """Median seconds of a decoded token, always the same one or (`vary`) others."""
    executor.allocate_kv(pages_for(executor.layout, CONTEXT + 16), "f16", (0,) * len(executor.layout.groups))
    step = simple_step(executor.layout, np.array([7], np.int32), CONTEXT)
    for _ in range(8):
        executor.forward(step)
    samples = []
    for index in range(steps):
        if vary:
            step = simple_step(executor.layout, np.array([7 + 31 * index], np.int32), CONTEXT)
        start = time.perf_counter()
        executor.forward(step)
        samples.append(time.perf_counter() - start)
    return statistics.median(samples)


def say(text: str) -> None:
    """Print at once."""
    print(text, flush=True)


def check(options: ExecutorOptions) -> None:
    """A small model split gives what it gives whole on the card."""
    spec = centred(random_model(replace(SHAPES["8b"], inner=4096, vocabulary=2048), "q4_0", 3))
    for name, model in (("dense", spec), ("relu", sparse_model(spec))):
        outputs = []
        for share in (1.0, 0.5, 0.0):
            made: Executor = (
                GpuExecutor(model, options)
                if share == 1.0
                else HybridExecutor(model, uniform_placement(model, share), GpuDevice, options)
            )
            made.allocate_kv(pages_for(made.layout, 64), "f16", (0,))
            tokens = np.arange(5, 21, dtype=np.int32)
            first = made.forward(simple_step(made.layout, tokens)).copy()
            rest = [made.forward(simple_step(made.layout, np.array([9 + i]), 16 + i)).copy() for i in range(6)]
            outputs.append(np.concatenate([first, *rest]))
            made.close()
        for share, found in zip((0.5, 0.0), outputs[1:], strict=True):
            wrong = np.abs(found - outputs[0]).max() / np.abs(outputs[0]).max()
            agree = float((found.argmax(1) == outputs[0].argmax(1)).mean())
            say(f"check {name} share {share}: relative difference {wrong:.1e}, top-1 agreement {agree:.0%}")


def measure(
    name: str, spec: ModelSpec, options: ExecutorOptions, placement: Placement, steps: int, *, vary: bool = False
) -> float:
    """Load, decode, print."""
    start = time.time()
    made = HybridExecutor(spec, placement, GpuDevice, options)
    loaded = time.time() - start
    seconds = decode(made, steps, vary=vary)
    memory = made.memory()
    profile = made.cold_profile()
    total = sum(profile.values()) or 1
    parts = ", ".join(f"{key} {value / total:.0%}" for key, value in profile.items())
    units = len(placement.layers[0].units), unit_count(spec.layers[0].feed_forward)
    sizes = ", ".join(f"{key} {value / 1e9:.3f} GB" for key, value in memory.weights.items())
    say(
        f"{name}: {1 / seconds:.1f} tok/s ({seconds * 1e3:.3f} ms); {units[0]} of {units[1]} units a layer, weights "
        f"{sizes}; loaded in {loaded:.0f} s; CPU: {parts}"
    )
    alone = statistics.median(made.cold_seconds(steps))
    cold = memory.weights["cpu"]
    say(f"  the CPU's half alone {alone * 1e3:.3f} ms: {cold / alone / 1e9:.1f} GB/s of its weights; {made.describe()}")
    fires = made.firing()
    if fires is not None:
        say(f"  of the CPU's neurons {fires:.1%} fired in the last layer")
    made.close()
    return seconds


def main() -> None:
    """All measurements that are asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="check,trip,dense,relu")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--share", type=float, default=0.5)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--rows", type=int, default=16)
    given = parser.parse_args()
    wanted = given.only.split(",")
    options = ExecutorOptions(max_rows=given.rows, threads=given.threads)
    if "mixture" in wanted:
        mixture(options, given.steps, given.layers if given.layers != 32 else 48)
    if "check" in wanted:
        check(options)
    spec = centred(random_model(SHAPES["8b"], "q4_0", given.layers))
    whole = sum(
        linear.weight.nbytes
        for layer in spec.layers
        for linear in (
            *(layer.attention.query, layer.attention.key, layer.attention.value, layer.attention.output),  # type: ignore[union-attr]
            *(layer.feed_forward.gate, layer.feed_forward.up, layer.feed_forward.down),
        )
        if linear is not None
    )
    whole += spec.head.linear.weight.nbytes + spec.embed.table.nbytes
    budget = int(given.share * whole)
    say(f"weights {whole / 1e9:.3f} GB, {budget / 1e9:.3f} GB of them for the card")
    if "trip" in wanted:
        full = GpuExecutor(spec, options)
        alone = decode(full, given.steps)
        full.close()
        counts = [unit_count(layer.feed_forward) for layer in spec.layers]
        most = Placement(tuple(LayerPlacement(tuple(range(count - 1))) for count in counts))
        seconds = measure("one group a layer on the CPU", spec, options, most, given.steps)
        say(f"card alone {1 / alone:.1f} tok/s; round trip {(seconds - alone) / given.layers * 1e6:.1f} us a layer")
    if "dense" in wanted or "relu" in wanted:
        for threads in (8, 16):
            bandwidth = measure_memory_bandwidth(threads, repetitions=3)
            say(f"memory bandwidth, {threads} threads: {bandwidth / 1e9:.1f} GB/s")
    for name, model in (("dense", spec), ("relu", sparse_model(spec))):
        if name in wanted:
            start = time.time()
            workspace = fit_gpu(model, options, 1 << 60)
            assert workspace is not None
            placement = weights_within(model, options, budget)
            say(f"{name}: planned in {time.time() - start:.1f} s")
            measure(f"{name}, half on the card", model, options, placement, given.steps)


def weights_within(spec: ModelSpec, options: ExecutorOptions, budget: int) -> Placement:
    """The largest placement whose weights alone fit: workspace and KV are not counted, as the reference does not."""
    from localllm.kernels.gpu.device import open_gpu, short_type
    from localllm.kernels.gpu.planning import plan_memory
    from localllm.kernels.gpu.vector_products import VectorProducts
    from localllm.kernels.hybrid.fitting import fit_placement

    gpu = open_gpu()
    vectors = VectorProducts(gpu, gpu.arithmetic)
    found = fit_placement(
        spec,
        budget,
        lambda splits: plan_memory(spec, gpu, vectors, options.max_rows, short_type(gpu), splits)[0].weights,
    )
    assert found is not None
    return found


if __name__ == "__main__":
    main()

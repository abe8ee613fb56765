"""Measures a hybrid on one card and its CPU in one call: decoding, prompts, experts that move, and how exact it is.

    python scripts/hybrid_benchmark.py [--only check,memory,trip,dense,relu,prefill,mixture,kl] [--models FILE...]
        [--limit SECONDS] [--layers N] [--mixture-layers N] [--tiny]

Every part runs in a process of its own, which is ended when its time is over, and prints each row when it is measured.
First all parts run with one layer and side by side, which compiles their kernels. `--tiny` tries the script anywhere
(TRITON_INTERPRET=1). The ReLU model has the shape of the dense one; biases of its gates make 12% of the neurons fire,
with a skew as measured on real models: the hottest 26% make 63% of the activations.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from hybrid_models import FULL, TINY, dense_model, matrices, mixture_model, popularity, sparse_model

from localllm.benchmark import measure_memory_bandwidth
from localllm.kernels.executor import ExecutorOptions
from localllm.kernels.gpu.device import open_gpu, short_type
from localllm.kernels.gpu.executor import GpuExecutor, GpuOptions
from localllm.kernels.gpu.planning import plan_memory
from localllm.kernels.gpu.vector_products import VectorProducts
from localllm.kernels.hybrid.executor import HybridExecutor
from localllm.kernels.hybrid.fitting import fit_placement
from localllm.kernels.hybrid.gpu_device import PIECE_BYTES, GpuDevice
from localllm.kernels.hybrid.placement import LayerPlacement, Placement, uniform_placement, unit_count
from localllm.kernels.single_sequence import logits_of, pages_for, simple_step

if TYPE_CHECKING:
    from localllm.kernels.executor import Executor
    from localllm.kernels.spec import ModelSpec

CONTEXT = 256
LIMITS = {
    **dict.fromkeys(("check", "memory", "trip", "dense", "relu"), 60.0),
    **{"prefill": 90.0, "mixture": 200.0, "kl": 120.0},
}
PARTS = tuple(LIMITS)
BEGAN = time.time()


def say(what: str, value: str, more: str = "") -> None:
    """A row of the table, at once."""
    print(f"{time.time() - BEGAN:6.1f} s | {what:<44} | {value:<24} | {more}", flush=True)


class Benchmark:
    """The parts, with what was asked for."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.sizes = TINY if given.tiny else FULL
        self.steps: int = given.steps
        self.layers: int = min(given.layers or 99, self.sizes.dense.layers)
        self.mixture_layers: int = min(given.mixture_layers or given.layers or 99, self.sizes.mixture.layers)
        self.moves: int = given.moves
        self.models: list[str] = given.models
        self.tiny: bool = given.tiny
        self.warm: bool = given.warm
        self.options = ExecutorOptions(max_rows=16, threads=given.threads)
        self.context = 20 if given.tiny else CONTEXT

    # What parts are made of

    def open(
        self, spec: ModelSpec, placement: Placement, *, rows: int = 16, streamed: bool = False, adaptive: bool = False
    ) -> tuple[HybridExecutor, GpuDevice]:
        """A hybrid and its device."""
        devices: list[GpuDevice] = []
        piece = (1 << 14 if self.tiny else PIECE_BYTES) if streamed else 0
        make = partial(GpuDevice, gpu_options=GpuOptions(piece_bytes=piece, moving=adaptive))

        def device(*arguments: object) -> GpuDevice:
            devices.append(make(*arguments))  # type: ignore[arg-type]
            return devices[0]

        options = replace(self.options, max_rows=rows)
        made = HybridExecutor(spec, placement, device, options, adaptive=adaptive)
        made.allocate_kv(pages_for(made.layout, max(rows, self.context) + 16), "f16", (0,) * len(made.layout.groups))
        return made, devices[0]

    def decode(self, executor: Executor, steps: int, *, vary: bool = False) -> float:
        """Median seconds of a decoded token, always the same one or (`vary`) others."""
        vocabulary, samples = executor.spec.vocabulary_size, []
        before = 1 if self.tiny else 4
        for index in range(before + steps):
            token = (7 + 31 * index) % vocabulary if vary else 7
            step = simple_step(executor.layout, np.array([token], np.int32), self.context)
            start = time.perf_counter()
            executor.forward(step)
            samples.append(time.perf_counter() - start)
        return statistics.median(samples[before:])

    def measure(self, name: str, spec: ModelSpec, placement: Placement, *, vary: bool = False) -> float:
        """Decode, and what each half needs by itself."""
        start = time.time()
        made, device = self.open(spec, placement)
        loaded = time.time() - start
        seconds = self.decode(made, self.steps, vary=vary)
        memory = made.memory().weights
        units = f"{len(placement.layers[0].units)} of {unit_count(spec.layers[0].feed_forward)} units a layer"
        sizes = ", ".join(f"{key} {value / 1e9:.3f} GB" for key, value in memory.items())
        say(
            f"{name}: decode",
            f"{1 / seconds:.1f} tok/s",
            f"{seconds * 1e3:.3f} ms; {units}; {sizes}; load {loaded:.0f} s",
        )
        alone = statistics.median(made.cold_seconds(max(1, self.steps // 4)) or [0.0])
        step = simple_step(made.layout, np.array([7], np.int32), self.context)
        card = device.seconds_alone(step, max(1, self.steps // 4))
        rate = f"{memory['cpu'] / alone / 1e9:.1f} GB/s of its weights" if alone else "nothing"
        say(f"{name}: halves by themselves", f"CPU {alone * 1e3:.3f} ms", f"{rate}; card {card * 1e3:.3f} ms")
        profile = made.cold_profile()
        total = sum(profile.values()) or 1
        say(f"{name}: CPU's time", "", ", ".join(f"{key} {value / total:.0%}" for key, value in profile.items()))
        if made.firing() is not None:
            say(f"{name}: of the CPU's neurons fire", f"{made.firing():.1%}")
        made.close()
        return seconds

    def half(self, spec: ModelSpec) -> Placement:
        """The placement of which half of all weights are on the card; workspace and KV are not counted."""
        whole = sum(tensor.nbytes for index in range(len(spec.layers)) for tensor in matrices(spec, index))
        whole += spec.head.linear.weight.nbytes + spec.embed.table.nbytes
        gpu = open_gpu()
        vectors, short = VectorProducts(gpu, gpu.arithmetic), short_type(gpu)
        found = fit_placement(
            spec, whole // 2, lambda splits: plan_memory(spec, gpu, vectors, 16, short, splits)[0].weights
        )
        return uniform_placement(spec, 0.4) if found is None else found

    # The parts

    def check(self) -> None:
        """A small model split gives what it gives whole on the card."""
        sizes = replace(
            self.sizes,
            dense=replace(self.sizes.dense, inner=self.sizes.dense.inner // 2, vocabulary=64 if self.tiny else 256),
        )
        spec = dense_model(sizes, 1 if self.tiny else 2)
        for name, model in (("dense", spec), ("relu", sparse_model(spec)), ("mixture", mixture_model(TINY))):
            whole = self._outputs(GpuExecutor(model, replace(self.options, max_rows=32)))
            for share, streamed in ((0.5, False), (0.0, False), (0.5, True)):
                made, device = self.open(model, uniform_placement(model, share), rows=32, streamed=streamed)
                device.stream_from = 6 if streamed else None
                found = self._outputs(made)
                wrong = np.abs(found - whole).max() / np.abs(whole).max()
                agree = float((found.argmax(1) == whole.argmax(1)).mean())
                how = "streamed" if streamed else "both halves"
                say(f"check {name}, {share:.0%} on the card, {how}", f"differs by {wrong:.1e}", f"top-1 {agree:.0%}")

    def _outputs(self, executor: Executor) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        executor.allocate_kv(pages_for(executor.layout, 64), "f16", (0,))
        rows, more = (8, 1) if self.tiny else (16, 6)
        first = executor.forward(simple_step(executor.layout, np.arange(5, 5 + rows, dtype=np.int32))).copy()
        rest = [executor.forward(simple_step(executor.layout, np.array([9 + i]), rows + i)).copy() for i in range(more)]
        executor.close()
        return np.concatenate([first, *rest])

    def memory(self) -> None:
        """What the CPU reads, by threads."""
        for threads in (2,) if self.tiny else (8, 16):
            bandwidth = measure_memory_bandwidth(threads, repetitions=1 if self.tiny else 3)
            say(f"memory bandwidth, {threads} threads", f"{bandwidth / 1e9:.1f} GB/s")

    def trip(self) -> None:
        """The cost of meeting: one group a layer on the CPU, against the card alone."""
        spec = dense_model(self.sizes, self.layers)
        full = GpuExecutor(spec, self.options)
        full.allocate_kv(pages_for(full.layout, self.context + 16), "f16", (0,))
        alone = self.decode(full, self.steps)
        full.close()
        say("card alone: decode", f"{1 / alone:.1f} tok/s", f"{alone * 1e3:.3f} ms")
        most = Placement(
            tuple(LayerPlacement(tuple(range(unit_count(layer.feed_forward) - 1))) for layer in spec.layers)
        )
        seconds = self.measure("one group a layer on the CPU", spec, most)
        say("round trip", f"{(seconds - alone) / len(spec.layers) * 1e6:.1f} us a layer", "asked: below 12")

    def dense(self) -> None:
        """Half of the weights on the card."""
        spec = dense_model(self.sizes, self.layers)
        self.measure("dense, half on the card", spec, self.half(spec))

    def relu(self) -> None:
        """The same with ReLU: all gates on the card."""
        spec = sparse_model(dense_model(self.sizes, self.layers))
        self.measure("ReLU, half on the card", spec, self.half(spec))

    def prefill(self) -> None:
        """Prompts by both halves, and streamed, by rows a step."""
        spec = dense_model(self.sizes, self.layers)
        short = self.tiny or self.warm
        most = 8 if self.tiny else 32 if short else 512
        counts = (8,) if self.tiny else (8, 32) if short else (8, 16, 32, 64, 128, 256, 512)
        for name, model in (("dense", spec), ("ReLU", sparse_model(spec))):
            made, device = self.open(model, self.half(model), rows=most, streamed=True)
            cost = device.stream_cost(min(64, most))
            made.choose_switch_over()
            chosen = device.stream_from
            if cost is not None:
                size = device.streamed_bytes
                more = f"{size / 1e9:.2f} GB at {size / cost.copy / 1e9:.1f} GB/s; products {1 / cost.row:.0f} rows/s"
                say(f"{name}: switch-over as measured", f"{chosen} rows", more)
            for rows in counts:
                step = simple_step(made.layout, np.arange(rows, dtype=np.int32) % 200, output_rows=np.array([rows - 1]))
                times = []
                for least in (None, 1):
                    device.stream_from = least
                    times.append(min(self._seconds(made, step) for _ in range(1 if short else 3)))
                faster = f"streaming is {times[0] / times[1]:.2f} times as fast"
                rates = f"{rows / times[0]:.0f} and {rows / times[1]:.0f} tok/s"
                say(f"{name}: {rows} rows, both halves and streamed", rates, faster)
            made.close()

    def _seconds(self, executor: Executor, step: object) -> float:
        start = time.perf_counter()
        executor.forward(step)  # type: ignore[arg-type]
        return time.perf_counter() - start

    def mixture(self) -> None:
        """A third of the experts on the card: whole layers, the popular of each layer, and those that move there."""
        spec, count = mixture_model(self.sizes, self.mixture_layers), self.sizes.experts
        third, layers = count // 3, len(spec.layers)
        popular = popularity(spec)
        everything, nothing = LayerPlacement(tuple(range(count))), LayerPlacement(())
        on_card = max(1, layers // 3)
        whole = Placement((nothing,) * (layers - on_card) + (everything,) * on_card)
        best = Placement(tuple(LayerPlacement(tuple(sorted(np.argsort(-rate)[:third].tolist()))) for rate in popular))
        static = self.measure("mixture, whole layers", spec, whole, vary=True)
        seconds = self.measure("mixture, popular experts", spec, best, vary=True)
        say("mixture: popular experts", f"{static / seconds:.2f} times", "as fast as whole layers; asked: 1.3")
        start = Placement((LayerPlacement(tuple(range(third))),) * layers)
        made, _ = self.open(spec, start, adaptive=True)
        swapper = made.swapper
        assert swapper is not None
        for part in range(1 if self.warm or self.tiny else 5):
            seconds = self.decode(made, self.moves // 5, vary=True)
            right = [
                len(set(p.units) & set(b.units)) / third
                for p, b in zip(made.placement.layers, best.layers, strict=True)
            ]
            more = f"{swapper.swaps} swaps so far; {statistics.mean(right):.0%} of the popular experts are on the card"
            name = f"mixture, first experts, moving: {(part + 1) * (self.moves // 5)} tokens"
            say(name, f"{1 / seconds:.1f} tok/s", f"{static / seconds:.2f} times whole layers; {more}")
        made.close()

    def kl(self) -> None:
        """Divergence from float32 of real models: on the CPU, on the card, and halved."""
        from localllm.gguf_io import open_gguf
        from localllm.kernels.cpu.executor import CpuExecutor
        from localllm.kernels.reference import ReferenceExecutor
        from localllm.models import load_spec
        from localllm.tokenizer import Tokenizer

        for path in self.models:
            if not Path(path).is_file():
                say(f"KL, {Path(path).name}", "no such file")
                continue
            with open_gguf(Path(path)) as file:
                spec, options = load_spec(file), ExecutorOptions(max_rows=64, threads=self.options.threads)
                tokens = np.array(Tokenizer.from_gguf(file).encode(TEXT)[: 16 if self.tiny or self.warm else 96])
                reference = _log(logits_of(ReferenceExecutor(spec, options), tokens))
                half = uniform_placement(spec, 0.5)
                kinds = {
                    "CPU": lambda: CpuExecutor(spec, options),  # noqa: B023
                    "card": lambda: GpuExecutor(spec, options),  # noqa: B023
                    "halved": lambda: HybridExecutor(spec, half, GpuDevice, options),  # noqa: B023
                }
                for name, make in kinds.items():
                    executor: Executor = make()
                    found = _log(logits_of(executor, tokens, kv_type="f16"))
                    executor.close()
                    loss = float((np.exp(reference) * (reference - found)).sum(1).mean())
                    agree = float((found.argmax(1) == reference.argmax(1)).mean())
                    say(f"KL, {Path(path).name[:28]}, {name}", f"{loss:.5f} nats", f"top-1 {agree:.1%}")


TEXT = (
    "The history of the lighthouse begins long before electricity. Fires were lit on hills so that sailors could find "
    "the harbour at night, and later towers were built of stone. In the eighteenth century lamps with reflectors "
    "replaced open fires; in the nineteenth, the Fresnel lens made a small flame visible for thirty kilometres. "
    "Keepers lived in the towers, trimmed the wicks and wound the clockwork. Most lights are automatic today, and "
    "many have become museums."
)


def _log(
    logits: np.ndarray[tuple[int, ...], np.dtype[np.float32]],
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    found: np.ndarray[tuple[int, ...], np.dtype[np.float64]] = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    return found


def run_part(name: str, arguments: list[str], limit: float, *, quiet: bool) -> subprocess.Popen[bytes]:
    """A part in a process of its own."""
    command = ["timeout", "--kill-after=5", str(limit), sys.executable, __file__, "--part", name, *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.DEVNULL if quiet else None, stderr=subprocess.STDOUT if quiet else None
    )


def main() -> None:
    """Compile, then every part that is asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--part", choices=PARTS)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--warm", action="store_true", help="a short run that compiles the kernels")
    parser.add_argument("--no-warm", action="store_true")
    parser.add_argument("--limit", type=float, help="seconds of every part, instead of its own limit")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--mixture-layers", type=int)
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--moves", type=int, default=1500, help="tokens in which experts may move")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--models", nargs="*", default=[])
    given = parser.parse_args()
    if given.part:
        getattr(Benchmark(given), given.part)()
        return
    arguments = sys.argv[1:]
    limits = LIMITS if given.limit is None else dict.fromkeys(PARTS, given.limit)
    wanted = [part for part in given.only.split(",") if part]
    if not given.no_warm and not given.tiny:
        short = ["--warm", "--layers", "1", "--mixture-layers", "3", "--steps", "1", "--moves", "5", "--threads", "1"]
        running = {
            part: run_part(part, [*arguments, *short], limits[part], quiet=True) for part in wanted if part != "memory"
        }
        failed = [part for part, process in running.items() if process.wait()]
        say("kernels compiled", f"{len(running)} parts", f"failed: {', '.join(failed)}" if failed else "")
    for part in wanted:
        start = time.time()
        code = run_part(part, arguments, limits[part], quiet=False).wait()
        say(f"part {part}", "done" if not code else f"ended with {code}", f"{time.time() - start:.0f} s")


if __name__ == "__main__":
    main()

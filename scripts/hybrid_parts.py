"""What the hybrid benchmark measures, part by part (see `hybrid_benchmark.py`, which runs each in its own process)."""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from hybrid_machine import measure, try_budgets
from hybrid_models import FULL, TINY, dense_model, matrices, mixture_model, popularity, rates_of, sparse_model

from localllm.kernels.cpu.executor import CpuExecutor
from localllm.kernels.executor import ExecutorOptions
from localllm.kernels.gpu.device import open_gpu, short_type
from localllm.kernels.gpu.executor import GpuExecutor, GpuOptions
from localllm.kernels.gpu.planning import plan_memory
from localllm.kernels.gpu.vector_products import VectorProducts
from localllm.kernels.hybrid.executor import HybridExecutor
from localllm.kernels.hybrid.fitting import fit_placement, unit_rates
from localllm.kernels.hybrid.gpu_device import PIECE_BYTES, GpuDevice
from localllm.kernels.hybrid.placement import LayerPlacement, Placement, uniform_placement, unit_count
from localllm.kernels.single_sequence import pages_for, simple_step
from localllm.placement.cost import LayerPlacement as PlannedLayer
from localllm.placement.cost import predict
from localllm.placement.parts import parts_of
from localllm.profiles.measure import measure_profile

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from localllm.kernels.executor import Executor
    from localllm.kernels.spec import ModelSpec
    from localllm.placement.machine import Machine

    Floats = npt.NDArray[np.float64]

CONTEXT = 256
REFERENCE = 28.5  # tokens/s of the reference with half of the dense model on the card and 16 threads
BEGAN = time.time()


@dataclass(frozen=True, slots=True)
class Wishes:
    """What was asked for on the command line."""

    part: str
    tiny: bool
    warm: bool
    steps: int
    layers: int | None
    mixture_layers: int | None
    seconds: float
    threads: int | None
    models: tuple[str, ...]
    text: Path | None
    out: Path | None


class Benchmark:
    """The parts, with what was asked for."""

    def __init__(self, wishes: Wishes) -> None:
        self.wishes, self.tiny, self.warm = wishes, wishes.tiny, wishes.warm
        self.sizes = TINY if wishes.tiny else FULL
        self.steps = wishes.steps
        self.layers = min(wishes.layers or 99, self.sizes.dense.layers)
        self.mixture_layers = min(wishes.mixture_layers or wishes.layers or 99, self.sizes.mixture.layers)
        self.options = ExecutorOptions(max_rows=16, threads=wishes.threads)
        self.context = 20 if wishes.tiny else CONTEXT
        self._machine: Machine | None = None

    def say(self, what: str, value: str, more: str = "", **numbers: float | None) -> None:
        """A row of the table, at once; its numbers also into the file."""
        print(f"{time.time() - BEGAN:6.1f} s | {what:<46} | {value:<24} | {more}", flush=True)
        if self.wishes.out is not None and not self.warm:
            row = {"part": self.wishes.part, "what": what, "value": value, "more": more, **numbers}
            with self.wishes.out.open("a") as file:
                file.write(json.dumps(row) + "\n")

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

    def decode(self, executor: Executor, steps: int, *, vary: int | None = None, before: int = 4) -> float:
        """Median seconds of a decoded token, always the same one or (`vary`: the first) others."""
        vocabulary, samples = executor.spec.vocabulary_size, []
        before = min(before, 1) if self.tiny else before
        for index in range(before + steps):
            token = 7 if vary is None else (7 + 31 * (vary + index)) % vocabulary
            step = simple_step(executor.layout, np.array([token], np.int32), self.context)
            start = time.perf_counter()
            executor.forward(step)
            samples.append(time.perf_counter() - start)
        return statistics.median(samples[before:])

    def measure(
        self, name: str, spec: ModelSpec, placement: Placement, rates: Sequence[Floats | None] | None = None
    ) -> float:
        """Decode, what the cost model says of it, and what each half needs by itself."""
        start = time.time()
        made, device = self.open(spec, placement)
        loaded = time.time() - start
        seconds = self.decode(made, self.steps)
        self._tell(name, spec, made, seconds, loaded)
        self._compare(name, spec, placement, seconds, rates)
        self._halves(name, made, device)
        made.close()
        return seconds

    def _tell(self, name: str, spec: ModelSpec, made: HybridExecutor, seconds: float, loaded: float) -> None:
        units = f"{len(made.placement.layers[0].units)} of {unit_count(spec.layers[0].feed_forward)} units a layer"
        sizes = ", ".join(f"{key} {value / 1e9:.3f} GB" for key, value in made.memory().weights.items())
        more = f"{seconds * 1e3:.3f} ms; {units}; {sizes}; load {loaded:.0f} s"
        self.say(f"{name}: decode", f"{1 / seconds:.1f} tok/s", more, seconds=seconds)

    def _compare(
        self,
        name: str,
        spec: ModelSpec,
        placement: Placement,
        seconds: float,
        rates: Sequence[Floats | None] | None,
    ) -> None:
        parts = parts_of(spec, context=self.context, frequencies=rates)
        placed = tuple(PlannedLayer(True, layer.gate, len(layer.units)) for layer in placement.layers)
        expected = predict(parts, placed, True, self.machine()).decode
        share = f"{1 / seconds / expected:.0%} of the cost model's prediction"
        self.say(f"{name}: predicted", f"{expected:.1f} tok/s", share, predicted=expected, of=1 / seconds / expected)

    def machine(self) -> Machine:
        """This machine as the cost model wants it, with the card's bandwidth and its link's measured too."""
        if self._machine is None:
            threads = self.options.threads or 16
            self._machine = measure(self.say, threads, quick=self.tiny or self.warm)
        return self._machine

    def _halves(self, name: str, made: HybridExecutor, device: GpuDevice) -> None:
        alone = statistics.median(made.cold_seconds(max(1, self.steps // 4)) or [0.0])
        step = simple_step(made.layout, np.array([7], np.int32), self.context)
        card = device.seconds_alone(step, max(1, self.steps // 4))
        rate = f"{made.memory().weights['cpu'] / alone / 1e9:.1f} GB/s of its weights" if alone else "nothing"
        more = f"{rate}; card {card * 1e3:.3f} ms"
        self.say(f"{name}: halves by themselves", f"CPU {alone * 1e3:.3f} ms", more, cpu=alone, card=card)
        profile = made.cold_profile()
        total = sum(profile.values()) or 1
        kinds = ", ".join(f"{key} {value / total:.0%}" for key, value in profile.items())
        self.say(f"{name}: CPU's time", f"{made.cold_threads()} threads", kinds)
        firing = made.firing()
        if firing is not None:
            self.say(f"{name}: of the CPU's neurons fire", f"{firing:.1%}", firing=firing)

    def half(self, spec: ModelSpec, rates: Sequence[Floats | None] | None = None) -> Placement:
        """The placement of which half of all weights are on the card; workspace and KV are not counted."""
        whole = sum(tensor.nbytes for index in range(len(spec.layers)) for tensor in matrices(spec, index))
        whole += spec.head.linear.weight.nbytes + spec.embed.table.nbytes
        gpu = open_gpu()
        vectors, short = VectorProducts(gpu, gpu.arithmetic), short_type(gpu)
        units = None if rates is None else unit_rates(spec, rates)
        found = fit_placement(
            spec, whole // 2, lambda splits: plan_memory(spec, gpu, vectors, 16, short, splits)[0].weights, rates=units
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
                wrong = float(np.abs(found - whole).max() / np.abs(whole).max())
                agree = float((found.argmax(1) == whole.argmax(1)).mean())
                how = "streamed" if streamed else "both halves"
                what = f"check {name}, {share:.0%} on the card, {how}"
                self.say(what, f"differs by {wrong:.1e}", f"top-1 {agree:.0%}", wrong=wrong)

    def _outputs(self, executor: Executor) -> npt.NDArray[np.float32]:
        executor.allocate_kv(pages_for(executor.layout, 64), "f16", (0,))
        rows, more = (8, 1) if self.tiny else (16, 6)
        first = executor.forward(simple_step(executor.layout, np.arange(5, 5 + rows, dtype=np.int32))).copy()
        rest = [executor.forward(simple_step(executor.layout, np.array([9 + i]), rows + i)).copy() for i in range(more)]
        executor.close()
        return np.concatenate([first, *rest])

    def trip(self) -> None:
        """The cost of meeting: one group a layer on the CPU, against the card alone, in turns."""
        spec = dense_model(self.sizes, self.layers)
        full = GpuExecutor(spec, self.options, GpuOptions(arithmetic="float32"))  # as a half's
        full.allocate_kv(pages_for(full.layout, self.context + 16), "f16", (0,))
        most = Placement(
            tuple(LayerPlacement(tuple(range(unit_count(layer.feed_forward) - 1))) for layer in spec.layers)
        )
        made, device = self.open(spec, most)
        pairs = [(self.decode(full, self.steps // 4 + 1), self.decode(made, self.steps // 4 + 1)) for _ in range(4)]
        alone, halved = (statistics.median(column) for column in zip(*pairs, strict=True))
        self.say("card alone: decode", f"{1 / alone:.1f} tok/s", f"{alone * 1e3:.3f} ms", seconds=alone)
        self.say("one group a layer on the CPU: decode", f"{1 / halved:.1f} tok/s", f"{halved * 1e3:.3f} ms")
        trip = (halved - alone) / len(spec.layers)
        self.say("round trip", f"{trip * 1e6:.1f} us a layer", "asked: below 12", trip=trip)
        self._halves("one group a layer on the CPU", made, device)
        made.close()
        full.close()

    def dense(self) -> None:
        """Half of the weights on the card."""
        spec = dense_model(self.sizes, self.layers)
        self._against(self.measure("dense, half on the card", spec, self.half(spec)), "asked: 1.35")

    def relu(self) -> None:
        """The same with ReLU: all gates on the card, and the hottest neurons, which are known."""
        spec = sparse_model(dense_model(self.sizes, self.layers))
        known = [rates_of(layer.feed_forward) for layer in spec.layers]
        self._against(self.measure("ReLU, half on the card", spec, self.half(spec), known), "asked: 5")

    def learned(self) -> None:
        """Hot neurons lie anywhere in the file, and a profile of random tokens says which groups are hot."""
        spec = sparse_model(dense_model(self.sizes, self.layers), mixed=True)
        count = 16 if self.tiny or self.warm else 512
        options = replace(self.options, max_rows=min(count, 128), count_activations=True)
        executor, rng = CpuExecutor(spec, options), np.random.default_rng(3)
        start = time.time()
        ids = rng.integers(0, spec.vocabulary_size, count).tolist()
        profile = measure_profile(executor, ids, model="random", context=256)
        executor.close()
        rates = [profile.layers[index].counts.sum(axis=0) / count for index in range(len(spec.layers))]
        known = [rates_of(layer.feed_forward) for layer in spec.layers]
        placement = self.half(spec, rates)
        best = self.half(spec, known)
        same = [len(set(p.units) & set(b.units)) for p, b in zip(placement.layers, best.layers, strict=True)]
        share = sum(same) / max(1, sum(len(layer.units) for layer in best.layers))
        density = float(np.mean([rate.mean() for rate in rates]))
        more = f"{time.time() - start:.0f} s; {share:.0%} of its hot groups are the hottest; {density:.1%} fire"
        self.say("profile", f"{count} tokens", more, same=share, density=density)
        self._against(self.measure("ReLU, learned hot set", spec, placement, rates), "with a hot set from a profile")

    def _against(self, seconds: float, more: str) -> None:
        ratio = 1 / seconds / REFERENCE
        self.say("against the reference's 28.5 tok/s", f"{ratio:.2f} times", more, ratio=ratio)

    def prefill(self) -> None:
        """Prompts by both halves, and streamed, by rows a step."""
        spec = dense_model(self.sizes, self.layers)
        short, most = self.tiny or self.warm, 8 if self.tiny else 512
        every = (8,) if self.tiny else (8, 16, 32, 64, 128, 256, 512)
        for name, model, counts in (("dense", spec, every), ("ReLU", sparse_model(spec), every[::2])):
            made, device = self.open(model, self.half(model), rows=most, streamed=True)
            cost = device.stream_cost(min(64, most))
            made.choose_switch_over()
            chosen = device.stream_from
            if cost is not None:
                size = device.streamed_bytes
                more = f"{size / 1e9:.2f} GB at {size / cost.copy / 1e9:.1f} GB/s; products {1 / cost.row:.0f} rows/s"
                self.say(f"{name}: switch-over as measured", f"{chosen} rows", more, copy=cost.copy, row=cost.row)
            for rows in counts:
                step = simple_step(made.layout, np.arange(rows, dtype=np.int32) % 200, output_rows=np.array([rows - 1]))
                times = []
                for least in (1, None):
                    device.stream_from = least
                    repeats = 1 if short or (least is None and rows > 64) else 3
                    times.append(min(self._seconds(made, step) for _ in range(repeats + (least is not None))))
                ratio = times[1] / times[0]
                speeds = f"{rows / times[1]:.0f} and {rows / times[0]:.0f} tok/s"
                self.say(
                    f"{name}: {rows} rows, both halves and streamed", speeds, f"{ratio:.2f} times as fast", ratio=ratio
                )
            made.close()

    def _seconds(self, executor: Executor, step: object) -> float:
        start = time.perf_counter()
        executor.forward(step)  # type: ignore[arg-type]
        return time.perf_counter() - start

    def mixture(self) -> None:
        """A third of the experts on the card: whole layers against experts that move and popular ones, in turns."""
        spec, count = mixture_model(self.sizes, self.mixture_layers), self.sizes.experts
        third, layers = count // 3, len(spec.layers)
        popular = popularity(spec)
        everything, nothing = LayerPlacement(tuple(range(count))), LayerPlacement(())
        on_card = max(1, layers // 3)
        whole = Placement((nothing,) * (layers - on_card) + (everything,) * on_card)
        best = Placement(tuple(LayerPlacement(tuple(sorted(np.argsort(-rate)[:third].tolist()))) for rate in popular))
        start = time.time()
        static, _ = self.open(spec, whole)
        moving, device = self.open(spec, Placement((LayerPlacement(tuple(range(third))),) * layers), adaptive=True)
        loaded = time.time() - start
        self._tell("mixture, whole layers", spec, static, self.decode(static, self.steps // 2 + 1, vary=0), loaded)
        self._turns("mixture, first experts, not yet moved", static, moving, 1)
        swapper = moving.swapper
        assert swapper is not None
        began, rounds, done = time.time(), 1 if self.warm or self.tiny else 5, 0
        for part in range(rounds):
            while time.time() - began < self.wishes.seconds * (part + 1) / rounds:
                self.decode(moving, 16, vary=done, before=0)
                done += 16
            pairs = zip(moving.placement.layers, best.layers, strict=True)
            right = statistics.mean(len(set(p.units) & set(b.units)) / third for p, b in pairs)
            more = f"{swapper.swaps} swaps; {right:.0%} of the popular experts on the card"
            self._turns(f"mixture, moving, {done} tokens", static, moving, 2, more)
        self._turns("mixture, experts that have moved", static, moving, 6, "asked: 1.3")
        self._halves("mixture, experts that have moved", moving, device)
        moving.close()
        known, device = self.open(spec, best)
        self._turns("mixture, popular experts", static, known, 4)
        self._halves("mixture, popular experts", known, device)
        known.close()
        static.close()

    def _turns(self, name: str, static: Executor, other: Executor, rounds: int, more: str = "") -> None:
        """Two placements in turns."""
        steps = self.steps // 3 + 1
        pairs = [
            (self.decode(static, steps, vary=16 * i), self.decode(other, steps, vary=16 * i)) for i in range(rounds)
        ]
        first, second = (statistics.median(column) for column in zip(*pairs, strict=True))
        ratios = ", ".join(f"{a / b:.2f}" for a, b in pairs)
        speeds = f"{1 / second:.1f} and {1 / first:.1f} tok/s"
        ratio = statistics.median(a / b for a, b in pairs)
        what = f"{ratio:.2f} times whole layers ({ratios}); {more}"
        self.say(name, speeds, what, ratio=ratio, seconds=second, static=first)

    def budgets(self) -> None:
        """Twenty budgets from nothing to all: nothing fails, and never is a byte more allocated than allowed."""
        layers = min(2, self.layers)
        for name, spec in (("mixture", mixture_model(TINY)), ("dense", dense_model(self.sizes, layers))):
            try_budgets(self.say, name, spec, self.options, self.context, 2 if self.warm else 21)

    def kl(self) -> None:
        """Divergence from float32 of real models: on the CPU, on the card, and halved."""
        from hybrid_divergence import divergences  # needs the packages that read a model's file

        there = [path for path in self.wishes.models if Path(path).is_file()]
        for path in self.wishes.models:
            if path not in there:
                self.say(f"KL, {Path(path).name}", "no such file")
        most = 16 if self.tiny else 64 if self.warm else 448  # warm: a whole step of 32 rows and one row
        divergences(self.say, there, self.wishes.text, self.options.threads, most)

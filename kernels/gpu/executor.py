"""Steps on a GPU: one graph launch each, captured the first time a bucket of steps is seen."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from localllm.kernels.errors import ExecutionError, OutOfMemoryError
from localllm.kernels.executor import ExecutorOptions, LoadProgress, MemoryUse
from localllm.kernels.kv_layout import KVLayout
from localllm.kernels.step import Output

from .attention_tiles import attention_sizes, check_attention, rows_a_tile
from .bucket import bucket_of
from .card_memory import make_arena, piece_bytes, take_room
from .cublas import open_cublas
from .device import free_memory, open_gpu, short_type, unused
from .expert_moves import ExpertMoves, landing_words
from .failures import launching
from .flow import Machine
from .fragment_products import FragmentProducts, takes_fragments, vector_rows
from .inputs import StepInputs, input_bytes
from .kv_pools import MOST_SEQUENCES, KVPools, allocation, cache_bytes, step_bytes
from .library_products import LibraryProducts
from .matrix_products import MatrixProducts
from .model import ModelBuilder
from .planning import gib, plan_memory
from .runner import Runner
from .step_program import StepProgram
from .streaming import Stream, StreamedWeights
from .vector_products import VectorProducts
from .weight_memory import WeightMemory
from .workspace import logit_rows, make_workspace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy.typing as npt

    from localllm.kernels.hybrid.halves import Split
    from localllm.kernels.kv_layout import KVType
    from localllm.kernels.spec import ModelSpec
    from localllm.kernels.step import Step

    from .bucket import Bucket
    from .card_memory import Arena
    from .cublas import CublasLt
    from .device import Arithmetic
    from .meeting import Meeting
    from .model import GpuModel
    from .streaming import StreamPlan

_MOST_GRAPHS = 32


@dataclass(frozen=True, slots=True)
class GpuOptions:
    """What only the GPU executor knows; None: as suits the card.

    `piece_bytes`, `moving`: as in `plan_memory`; `entered`: steps begin with what `enter` is given.
    """

    arithmetic: Arithmetic | None = None
    short: torch.dtype | None = None
    device: int = 0
    graphs: bool = True
    piece_bytes: int = 0
    moving: bool = False
    entered: bool = False


class GpuExecutor:
    """Runs a model on one card (or, for tests, through Triton's interpreter).

    Raises OutOfMemoryError with the missing bytes when weights and workspace do not fit into `options.vram`.
    """

    def __init__(
        self,
        spec: ModelSpec,
        options: ExecutorOptions | None = None,
        gpu_options: GpuOptions | None = None,
        splits: Mapping[int, Split] | None = None,
    ) -> None:
        """`splits`: by layer, feed-forward blocks whose other half is on the CPU; then `meet` before the first step."""
        self.spec = spec
        self.layout = KVLayout.of(spec)
        given, own = options or ExecutorOptions(), gpu_options or GpuOptions()
        self.max_rows = given.max_rows
        self.gpu = open_gpu(own.device)
        self._short = own.short or short_type(self.gpu)
        self._use_graphs = own.graphs and not self.gpu.interpreted
        self._vectors = VectorProducts(self.gpu, own.arithmetic or self.gpu.arithmetic)
        self._fragments = FragmentProducts(self.gpu) if takes_fragments(self.gpu, self._short) else None
        self._splits = splits or {}
        self._halved = bool(splits)
        self._meeting: Meeting | None = None
        planned, counted, stream = plan_memory(
            spec, self.gpu, self._vectors, self.max_rows, self._short, self._splits, own.piece_bytes, own.moving
        )
        self._budget = given.vram if given.vram is not None else free_memory(self.gpu)
        cache = cache_bytes(self.gpu, self.layout, given)
        planned.check(f"{spec.name} needs {{}} on {self.gpu.name}", cache, self._budget)
        self.planned = planned
        self._pools: KVPools | None = None
        self._inputs_memory: tuple[torch.Tensor, torch.Tensor] | None = None
        self._cache: Arena | None = None
        self._cublas: CublasLt | None = None
        self._programs: OrderedDict[Bucket, Runner] = OrderedDict()
        self._started: tuple[Runner, Step] | None = None
        self.streamed: StreamedWeights | None = None
        self.moves: ExpertMoves | None = None
        self._moving = own.moving
        entering = self._host_memory(4 * self.max_rows * spec.hidden_size) if own.entered else None
        self._entering = None if entering is None else entering.view(torch.float32)
        self._allocate(counted, given, stream, cache)

    def _allocate(self, words: int, options: ExecutorOptions, stream: StreamPlan | None, cache: int) -> None:
        planned = self.planned
        try:
            take_room(self.gpu, planned.weights + planned.workspace + max(planned.loading, cache))
            piece = piece_bytes(self.gpu, planned.buffers + max(planned.loading, cache))
            self._arena = make_arena(self.gpu, 4 * words)
            memory = WeightMemory(self.gpu, self._arena.take((words,), torch.int32), options.progress, piece)
            self._model: GpuModel = ModelBuilder(self.spec, memory, self._splits).build()
            check_attention(self.gpu, self._model, options.kv_type, exact=self._vectors.arithmetic == "float32")
            blocks = () if stream is None else stream.blocks
            self._slots = make_arena(self.gpu, planned.slots)
            beside = self.gpu.inside(self._slots)
            if stream is not None:  # before the workspace, so that what packing needs for a moment has its room
                self.streamed = StreamedWeights(beside, self.spec, self._splits, self._model, stream, piece)
            if self._moving and (landing := landing_words(self.gpu, self.spec, self._splits))[0]:
                self.moves = ExpertMoves(beside, self.spec, landing, self._model, self.streamed)
            self._splits, self._buffers = {}, make_arena(self.gpu, planned.buffers)
            inside = self.gpu.inside(self._buffers)
            space = make_workspace(inside, self._model, self._vectors, self.max_rows, self._short, blocks)
            self._cublas = open_cublas(self.gpu) if space.library.numel() else None
            library = LibraryProducts(self.gpu, space.scratch, space.products, self._cublas, space.library)
            self._machine = Machine(
                self.gpu,
                self._vectors,
                MatrixProducts(self.gpu, library, self._fragments),
                space,
                self._model.ones,
                exact=self._vectors.arithmetic == "float32",
                vector_rows=vector_rows(self.spec, self._vectors, self._fragments, halved=self._halved),
            )
            self._logits = self._host_memory(space.logits.numel() * 4).view(torch.float32).view(space.logits.shape)
            if not self.gpu.interpreted:
                torch.cuda.synchronize()
                torch.cuda.empty_cache()
        except torch.OutOfMemoryError as error:
            self.close()
            raise OutOfMemoryError(
                f"{self.spec.name} needs {gib(self.planned.total)} on {self.gpu.name}, which has "
                f"{gib(unused(self.gpu))} free",
                hint="Close other programs that use the GPU, or give a lower --vram.",
            ) from error
        if options.progress is not None:
            options.progress(LoadProgress("loading weights onto the GPU", 1.0))

    def enter(self, rows: npt.NDArray[np.float32]) -> None:
        """The residual stream [M, hidden] with which the next step begins (with `GpuOptions.entered`)."""
        if self._entering is None:
            raise ExecutionError("this executor's steps begin with embeddings")
        self._entering[: rows.size].view(rows.shape).copy_(torch.from_numpy(rows))

    def meet(self, meeting: Meeting) -> None:
        """Where halves of blocks meet their other halves."""
        self._meeting = meeting

    def allocate_kv(self, pages: tuple[int, ...], kv_type: KVType, staging_pages: tuple[int, ...] = ()) -> None:
        """Make the page pools, f16 or f32; OutOfMemoryError when they do not fit into what the weights left."""
        self._programs.clear()
        self._pools = None
        self._inputs_memory = self._cache = None
        wanted = allocation(self.gpu, self.layout, self.max_rows, pages, kv_type)
        if self._budget is not None and self.planned.total + wanted > self._budget:
            raise OutOfMemoryError(
                f"a KV cache of {gib(wanted)} does not fit on {self.gpu.name}: weights and workspace take "
                f"{gib(self.planned.total)} of {gib(self._budget)}",
                hint="Ask for a shorter --context.",
            )
        try:
            arena = make_arena(self.gpu, wanted)
            self._pools = KVPools(self.gpu.inside(arena), self.layout, pages, kv_type)
            card = arena.take((step_bytes(self.max_rows, pages),), torch.uint8)
        except torch.OutOfMemoryError as error:
            self._pools = None
            raise OutOfMemoryError(
                f"a KV cache needs {gib(wanted)}, but {self.gpu.name} has {gib(unused(self.gpu))} free",
                hint="Ask for a shorter --context.",
            ) from error
        self._inputs_memory = self._host_memory(len(card)), card
        self._cache = arena

    def forward(self, step: Step) -> npt.NDArray[np.float32]:
        """Run at most `max_rows` rows; returns [R, vocabulary] logits or [R, hidden], valid until the next call."""
        self.start(step)
        return self.finish()

    def start(self, step: Step, number: int = 0, *, streamed: bool = False) -> None:
        """Begin a step; `number` is what flags are raised to where halves meet, unless those are `streamed`."""
        self._started = self._launch(step, 0, number, streamed), step

    def seen(self, step: Step) -> bool:
        """Whether a step like this one ran before, so that its kernels are compiled and captured."""
        return self._bucket(step, 0) in self._programs

    def finish(self) -> npt.NDArray[np.float32]:
        """Wait for the end of the step that was begun; its output, valid until the next one."""
        if self._started is None:
            raise ExecutionError("finish without start")
        (runner, step), self._started = self._started, None
        wanted = len(step.output_rows)
        if not wanted:
            self._wait()
            return np.empty((0, self.spec.vocabulary_size), np.float32)
        if wanted <= runner.bucket.outputs:
            return self._fetch(runner, wanted)
        outputs = []
        for start in range(0, wanted, runner.bucket.outputs):
            rows = step.output_rows[start : start + runner.bucket.outputs]
            runner.head_again(torch.from_numpy(np.ascontiguousarray(rows)))
            outputs.append(self._fetch(runner, len(rows)).copy())
        return np.concatenate(outputs)

    def best(self, step: Step, count: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """As `forward`, but only the `count` best ids [R, count] and their logits leave the card, best first."""
        if not 1 <= count <= 64:
            raise ExecutionError(f"{count} best tokens were asked for; between 1 and 64 are possible")
        runner = self._launch(step, count)
        wanted = len(step.output_rows)
        if wanted > runner.bucket.outputs:
            raise ExecutionError(
                f"{wanted} output rows, but only {runner.bucket.outputs} at once can be ranked on the card"
            )
        space = self._machine.workspace
        ids = space.best_ids[: wanted * count].cpu().numpy().reshape(wanted, count)
        values = space.best_values[: wanted * count].cpu().numpy().reshape(wanted, count)
        return ids, values

    def card_seconds(self, step: Step, repeats: int) -> float:
        """Seconds that the card needs for a step, without the host's share: the mean of `repeats` launches."""
        runner = self._launch(step, 0)
        runner.run(step)  # now from the graph
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        self._wait()
        start.record()
        for _ in range(repeats):
            runner.replay()
        stop.record()
        stop.synchronize()
        return float(start.elapsed_time(stop)) / 1e3 / repeats

    def copy_seconds(self) -> float:
        """Seconds in which all cold weights cross to the card (a card only)."""
        weights = self.streamed
        if weights is None:
            raise ExecutionError("no weights were prepared to cross")

        def run() -> None:
            for index in range(len(weights.pieces)):
                weights.copy_all(index)

        return self._timed(run)

    def multiplications(self, rows: int) -> float:
        """Multiplications a second in products of many rows, by the largest one of the first layer's attention."""
        linear, space = self._model.layers[0].attention.output, self._machine.workspace
        x = space.attended[linear.columns]

        def run() -> None:
            self._machine.matrices.plain(linear, x, rows, space.parts)

        return rows * linear.rows * linear.columns / self._timed(run)

    def _timed(self, run: Callable[[], object]) -> float:
        """Seconds on the card, the second time."""
        run()
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        stop.record()
        stop.synchronize()
        return float(start.elapsed_time(stop)) / 1e3

    def _bucket(self, step: Step, best: int) -> Bucket:
        return bucket_of(step, self.max_rows, logit_rows(self.spec.vocabulary_size, self.max_rows), best)

    def _launch(self, step: Step, best: int, number: int = 0, streamed: bool = False) -> Runner:
        rows = len(step.tokens)
        if self._pools is None or self._inputs_memory is None:
            raise ExecutionError("allocate_kv was not called")
        if rows > self.max_rows:
            raise ExecutionError(f"a step of {rows} rows, but max_rows is {self.max_rows}")
        if int(step.sequences[-1]) >= MOST_SEQUENCES:
            raise ExecutionError(f"a step of more than {MOST_SEQUENCES} sequences")
        self._pools.move(step.moves)
        bucket = replace(self._bucket(step, best), streamed=streamed)
        runner = self._programs.pop(bucket, None)
        if runner is None:
            while len(self._programs) >= _MOST_GRAPHS:
                self._programs.popitem(last=False)
            runner = self._prepare(bucket)
        with launching(self.gpu.name):
            runner.run(step, number)
        self._programs[bucket] = runner  # the last one used, and only if it ran
        return runner

    def _prepare(self, bucket: Bucket) -> Runner:
        if self._pools is None or self._inputs_memory is None:
            raise ExecutionError("allocate_kv was not called")
        size, exact = self._pools.layers[0].keys.element_size(), self._machine.exact
        layers = [
            attention_sizes(layer.attention, size, exact=exact, sinks=bucket.sinks) for layer in self._model.layers
        ]
        tile_rows = rows_a_tile(self.gpu, layers, bucket)
        host, card = self._inputs_memory
        groups = len(self.layout.groups)
        if input_bytes(bucket, groups, tile_rows) > len(host):
            raise ExecutionError(f"a step of {bucket.sequences} sequences of {bucket.pages} pages has too large tables")
        inputs = StepInputs(bucket, groups, tile_rows, host, card)
        stream = None
        if bucket.streamed and self.streamed is not None:
            stream = Stream(self.streamed, bucket.rows, self._machine.workspace.all_chosen)
        program = StepProgram(self._machine, self._model, self._pools, inputs, self._meeting, stream, self._entering)
        return Runner(bucket, inputs, program, graphs=self._use_graphs)

    def _fetch(self, runner: Runner, rows: int) -> npt.NDArray[np.float32]:
        space = self._machine.workspace
        if runner.bucket.output is Output.HIDDEN:
            found = space.head_x.natural[:rows, : self.spec.hidden_size].cpu().numpy()
            return np.ascontiguousarray(found)
        if self.gpu.interpreted:
            return space.logits[:rows].numpy().copy()
        self._logits[:rows].copy_(space.logits[:rows], non_blocking=True)
        self._wait()
        return self._logits[:rows].numpy()

    def _wait(self) -> None:
        if not self.gpu.interpreted:
            torch.cuda.current_stream().synchronize()

    def _host_memory(self, size: int) -> torch.Tensor:
        return torch.zeros(size, dtype=torch.uint8, pin_memory=not self.gpu.interpreted)

    def read_page(self, group: int, page: int) -> bytes:
        """A page's keys and values, layer after layer of the group."""
        return self._some_pools().read_page(group, page)

    def write_page(self, group: int, page: int, data: bytes) -> None:
        """Put back what `read_page` gave; ExecutionError when its length is wrong."""
        self._some_pools().write_page(group, page, data)

    def forget_pages(self) -> None:
        """The card's memory stays reserved, as the graphs of the steps hold its addresses."""

    def _some_pools(self) -> KVPools:
        if self._pools is None:
            raise ExecutionError("allocate_kv was not called")
        return self._pools

    def memory(self) -> MemoryUse:
        """What is allocated now, under the device name "cuda"."""
        kv = 0 if self._pools is None else self._pools.nbytes
        inputs = 0 if self._cache is None else self._cache.nbytes - kv
        workspace = self._slots.nbytes + self._buffers.nbytes + inputs
        return MemoryUse(weights={"cuda": self._arena.nbytes}, kv={"cuda": kv}, workspace={"cuda": workspace})

    def describe(self) -> str:
        """One line for people."""
        products = "int8 activations" if self._vectors.arithmetic == "int8" else "exact float32 products"
        line = f"{self.gpu.name}, {products}, one graph a step"
        if self._model.unpacked_types:
            names = ", ".join(sorted(kind.name for kind in self._model.unpacked_types))
            line += f"; {names} kept as 8 bits with a scale per 16"
        if self._model.turned:
            line += "; matrices stored a row a neuron kept as float16"
        return line

    def close(self) -> None:
        """Free everything on the card."""
        self._programs = OrderedDict()
        self._pools = self._inputs_memory = self._cache = None
        if self._cublas is not None:
            self._cublas.close()
        for name in ("_arena", "_slots", "_buffers", "_model", "_machine", "_logits", "streamed", "moves"):
            self.__dict__.pop(name, None)
        if not self.gpu.interpreted:
            torch.cuda.empty_cache()

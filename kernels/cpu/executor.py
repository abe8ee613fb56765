"""The CPU executor: a spec lowered to operation tables that a team of threads walks, one call a thread and step."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from localllm.gguf_io import Tensor, dequantize
from localllm.kernels.errors import ExecutionError
from localllm.kernels.executor import ExecutorOptions, MemoryUse
from localllm.kernels.kv_layout import KVLayout, check_kv_type
from localllm.kernels.selective import check_model, check_type
from localllm.kernels.spec import LatentAttention
from localllm.kernels.step import Output

from .activation_counts import ActivationCounts
from .block_inputs import BlockInputs
from .compile import KernelCompiler
from .governor import ThreadGovernor
from .isa import choose_isa
from .kv_pool import KVPool, page_shapes, page_type
from .lower_model import lower
from .lowering import BLOCK, Environment, RopeTables, blocks_of
from .memory import Block
from .modes import checked_shortlist, sparse_layers, turbo_layers
from .operation import MANY_THREADS, Kind, Operation, Rows, build_table
from .page_types import FLOAT_PAGES, LayerPages, PagePool, padded
from .rope_table import RopeTable
from .run_loop import CLAIM_FIELD
from .selective_state import SelectiveState
from .softmax import CHUNK_PAGES
from .step_plan import GroupPlan
from .step_state import MAX_GROUPS, Word
from .thread_team import ThreadTeam
from .weights import Weights
from .workspace import Workspace

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from localllm.kernels.kv_layout import KVType
    from localllm.kernels.spec import ModelSpec
    from localllm.kernels.step import Step

    from .lowering import OtherBlock

    Floats = npt.NDArray[np.float32]

_OUTPUT_ROWS = 16  # output rows there is memory for at first


class CpuExecutor:
    """Runs any spec on the CPU."""

    def __init__(
        self,
        spec: ModelSpec,
        options: ExecutorOptions | None = None,
        blocks: Mapping[int, OtherBlock] | None = None,
    ) -> None:
        """`blocks`: by layer, what lowers its feed-forward block in another way, as a half of a hybrid does."""
        options = options or ExecutorOptions()
        check_model(options.selective, spec)
        self._policy = options.selective
        self.spec = spec
        self.layout = KVLayout.of(spec)
        if len(self.layout.groups) > MAX_GROUPS:
            raise ExecutionError(
                f"the model has {len(self.layout.groups)} different windows, at most {MAX_GROUPS} work"
            )
        self.max_rows = options.max_rows
        self._progress = options.progress
        self._blocks = blocks or {}
        self._threads = options.threads or usable_cores()
        self._compiler = KernelCompiler(choose_isa())
        self._team = ThreadTeam(self._compiler, self._threads)
        self._governors = {single: ThreadGovernor(self._threads) for single in (True, False)}
        self._tokens, self._list = np.zeros(self.max_rows, np.int64), np.zeros(self.max_rows, np.int64)
        self._token_view, self._list_view = self._tokens.data, self._list.data
        self._words = self._team.words.data
        self._weights = Weights()
        self._ropes = RopeTables()
        self._pool: KVPool | None = None
        self._output_rows = min(_OUTPUT_ROWS, self.max_rows)
        self._turbo = turbo_layers(spec, options.mode, options.turbo)
        self._shortlist = checked_shortlist(spec, options.mode, options.turbo)
        self._sparse_layers = sparse_layers(spec, options.mode, options.rates) | self._turbo.keys()
        self._counts = ActivationCounts() if options.count_activations else None
        self._inputs = BlockInputs(len(spec.layers), self.max_rows, spec.hidden_size) if options.keep_inputs else None
        self._plan_weights()
        # The plan of weights does not say which neurons a half has, nor what a calibration brings.
        kept = None if self._blocks or self._turbo or self._shortlist is not None else options.repacked
        self._weights.load(options.progress, self._threads, kept)

    def _plan_weights(self) -> None:
        shapes = page_shapes(self.spec, self.layout, FLOAT_PAGES)
        self._environment = Environment(
            spec=self.spec,
            layout=self.layout,
            weights=self._weights,
            workspace=Workspace(self._threads, self.max_rows),
            pages=[LayerPages(PagePool(shape), PagePool(shape)) for shape in shapes],
            logits=Rows(0, 4 * padded(self.spec.vocabulary_size)),
            hidden=Rows(0, 4 * BLOCK * blocks_of(self.spec.hidden_size)),
            tokens=self._tokens.ctypes.data,
            max_parts=1,
            ropes=self._ropes,
            selective=SelectiveState(self._policy, self.layout, shapes, [1] * len(self.layout.groups)),
            sparse_layers=self._sparse_layers,
            turbo=self._turbo,
            shortlist=self._shortlist,
            counts=self._counts,
            inputs=self._inputs,
            blocks=self._blocks,
        )
        for single in (True, False):
            lower(self._environment, single=single, hidden=False)

    @property
    def weights(self) -> Weights:
        """The loaded weights."""
        return self._weights

    def allocate_kv(self, pages: tuple[int, ...], kv_type: KVType, staging_pages: tuple[int, ...] = ()) -> None:
        """Make the page pools and everything that depends on them: buffers, operation tables, kernels."""
        check_kv_type(self.spec, kv_type)
        shapes = page_shapes(self.spec, self.layout, page_type(kv_type))
        self.layout.check_staging(kv_type, staging_pages)
        check_type(self._policy, kv_type)
        self._pool = None
        self._pool = KVPool(self.layout, shapes, pages, staging_pages)
        workspace = Workspace(self._threads, self.max_rows)
        most = max(pages) + max(staging_pages, default=0)
        max_parts = max(64, 2 * (most // CHUNK_PAGES + 2))
        self._environment = replace(
            self._environment,
            workspace=workspace,
            pages=self._pool.layers,
            max_parts=max_parts,
            selective=SelectiveState(self._policy, self.layout, shapes, pages),
        )
        for single in (True, False):
            lower(self._environment, single=single, hidden=False)
        workspace.allocate()
        self._allocate_output(self._output_rows)
        self._rope_tables = [
            [
                RopeTable(rope, workspace.floats(workspace.shared(f"{kind} {i}", 8 * padded(rope.dimensions))))
                for kind in ("rope", "sink rope")
            ]
            for i, rope in enumerate(self._ropes.ropes)
        ]
        self._x = workspace.floats(workspace.shared("x", 4 * BLOCK * blocks_of(self.spec.hidden_size)))
        latent = any(isinstance(layer.attention, LatentAttention) for layer in self.spec.layers)
        last = self.layout.group_of(len(self.spec.layers) - 1) if self._environment.outputs_only else None
        self._plans = [
            GroupPlan(index, group.window, self.max_rows, max_parts, tiles=not latent, outputs=index == last)
            for index, group in enumerate(self.layout.groups)
        ]
        self._heads = [self.layout.layers[group.layers[0]].heads for group in self.layout.groups]
        self._words[Word.OUTPUT_LIST] = self._list.ctypes.data

    def _allocate_output(self, rows: int) -> None:
        """Room for `rows` rows of logits and hidden vectors, and tables that write there."""
        self._output_rows = rows
        self._output = [
            Block(rows * buffer.stride, "logits").bytes.view(np.float32).reshape(rows, -1)
            for buffer in (self._environment.logits, self._environment.hidden)
        ]
        self._operations: dict[tuple[bool, bool, bool], npt.NDArray[np.int64]] = {}
        self._lower_to_output((False, True), (True, False))

    def _tap(self, taps: tuple[int, ...]) -> None:
        """From now on these layers' outputs are handed out beside hidden vectors."""
        width = 4 * BLOCK * blocks_of(self.spec.hidden_size)
        self._environment = replace(self._environment, taps=taps, hidden=Rows(0, width * (1 + len(taps))))
        self._allocate_output(self._output_rows)

    def _lower_to_output(self, *ends: tuple[bool, bool]) -> None:
        """Tables of steps that end in (hidden vectors, logits)."""
        environment = replace(
            self._environment,
            logits=Rows(self._output[0].ctypes.data, self._environment.logits.stride),
            hidden=Rows(self._output[1].ctypes.data, self._environment.hidden.stride),
        )
        lowered = {
            (single, hidden, logits): lower(environment, single=single, hidden=hidden, logits=logits)
            for single in (True, False)
            for hidden, logits in ends
        }
        self._compile([operation for operations in lowered.values() for operation in operations])
        for key, operations in lowered.items():
            self._operations[key] = build_table(operations, self._compiler.compile)
        self._tables = {key: (table.ctypes.data, len(table)) for key, table in self._operations.items()}

    def _compile(self, operations: list[Operation]) -> None:
        sources = {(o.source.name, o.source.key): o.source for o in operations}
        self._compiler.compile_all(list(sources.values()), self._progress)

    def forward(self, step: Step) -> Floats:
        """Run at most `max_rows` rows; returns [R, vocabulary] logits or [R, hidden]. Valid until the next call."""
        if self._pool is None:
            raise ExecutionError("allocate_kv was not called")
        rows, outputs = len(step.tokens), len(step.output_rows)
        if not 1 <= rows <= self.max_rows:
            raise ExecutionError(f"a step of {rows} rows, but 1 to {self.max_rows} are possible")
        if self._policy is not None and step.tree is not None:
            raise ExecutionError("selective KV policies know no trees of guesses")
        if outputs > self._output_rows:
            self._allocate_output(min(max(outputs, 2 * self._output_rows), self.max_rows))
        if step.moves:
            self._pool.move(step.moves)
        single, hidden = rows == 1, step.output is Output.HIDDEN
        governor, words = self._governors[single], self._words
        threads = governor.choose()
        ends = (hidden or step.hidden is not None, not hidden)
        if step.hidden is not None and step.taps != self._environment.taps:
            self._tap(step.taps)
        if (single, *ends) not in self._tables:
            self._lower_to_output(ends)
        words[Word.OPERATIONS], words[Word.OPERATION_COUNT] = self._tables[single, *ends]
        words[Word.ROWS], words[Word.OUTPUT_ROWS] = rows, outputs
        words[Word.EVICTED] = step.sink_positions is not None
        if single and step.tree is None:
            self._prepare_one(step)
        else:
            self._prepare(step, threads)
        if not single or threads >= MANY_THREADS:
            self._operations[single, *ends][:, CLAIM_FIELD] = 0
        began = time.perf_counter()
        self._team.run(threads)
        governor.record((time.perf_counter() - began) / rows)
        if step.hidden is not None:
            found = self._output[1][:outputs].reshape(outputs, 1 + len(step.taps), -1)
            step.hidden[:] = found[:, :, : self.spec.hidden_size].reshape(outputs, -1)
        width = self.spec.hidden_size if hidden else self.spec.vocabulary_size
        return self._output[hidden][:outputs, :width]

    def _prepare_one(self, step: Step) -> None:
        """What a step of one row reads; as little Python as possible, see GroupPlan."""
        token, position = int(step.tokens[0]), int(step.positions[0])
        self._check_token(token)
        if self._environment.tied:
            self._token_view[0] = token
        else:
            self._embed(step)
        self._list_view[0] = 0
        for tables in self._rope_tables:
            tables[0].fill_one(position)
            if step.sink_positions is not None:
                tables[1].fill_one(int(step.sink_positions[0]))
        for plan in self._plans:
            plan.prepare_one(step, self._words)

    def _prepare(self, step: Step, threads: int) -> None:
        """What a step of any number of rows reads."""
        self._check_token(int(step.tokens.min()))
        self._check_token(int(step.tokens.max()))
        if self._environment.tied:
            self._tokens[: len(step.tokens)] = step.tokens
        else:
            self._embed(step)
        self._list[: len(step.output_rows)] = step.output_rows
        for tables in self._rope_tables:
            tables[0].fill(step.positions)
            if step.sink_positions is not None:
                tables[1].fill(step.sink_positions)
        for plan, heads in zip(self._plans, self._heads, strict=True):
            plan.prepare(step, self._team.words, heads, threads)

    def _check_token(self, token: int) -> None:
        if not 0 <= token < self.spec.vocabulary_size:
            raise ExecutionError(f"token {token} is outside the vocabulary of {self.spec.vocabulary_size}")

    def _embed(self, step: Step) -> None:
        """Embedding rows from the mapped file."""
        embed = self.spec.embed
        values = _rows_of(embed.table, step.tokens)
        if embed.scale != 1.0:
            values = values * np.float32(embed.scale)
        if embed.positions is not None:
            values = values + _rows_of(embed.positions, step.positions + embed.position_offset)
        self._x[: len(step.tokens), : self.spec.hidden_size] = values

    @property
    def words(self) -> npt.NDArray[np.int64]:
        """The state of the steps, see `step_state`."""
        return self._team.words

    def read_page(self, group: int, page: int) -> bytes:
        """A page's stored bytes over all layers of the group."""
        return self._pages().read(group, page)

    def write_page(self, group: int, page: int, data: bytes) -> None:
        """Put back what `read_page` gave; ExecutionError when its length is wrong."""
        self._pages().write(group, page, data)
        for layer in self.layout.groups[group].layers if page >= 0 else ():
            self._environment.selective.page_was_written(layer, page, self._pages().main(layer, page))

    def forget_pages(self) -> None:
        """The pools' memory goes back to the system and is zero again, as at first."""
        self._pages().forget()
        self._environment.selective.forget()

    def _pages(self) -> KVPool:
        if self._pool is None:
            raise ExecutionError("allocate_kv was not called")
        return self._pool

    def memory(self) -> MemoryUse:
        """What is allocated now."""
        kv = 0 if self._pool is None else self._pool.nbytes
        output = 0 if self._pool is None else sum(array.nbytes for array in self._output)
        workspace = 0 if self._pool is None else self._environment.workspace.size
        return MemoryUse(
            weights={"cpu": self._weights.arena.size},
            kv={"cpu": kv},
            workspace={"cpu": workspace + output + self._environment.selective.nbytes},
        )

    def describe(self) -> str:
        """One line for people."""
        megabytes = self._weights.arena.size / 1e6
        sparse = f", sparse in {len(self._sparse_layers)} layers" if self._sparse_layers and not self._turbo else ""
        turbo = f", turbo in {len(self._turbo)} layers" if self._turbo else ""
        turbo += ", shortlist of tokens" if self._shortlist is not None else ""
        rewritten = "".join(f"; {line}" for line in self._weights.rewritten)
        weights = f"weights {megabytes:.0f} MB repacked"
        return f"CPU {self._compiler.isa.name}, {self._threads} threads, {weights}{sparse}{turbo}{rewritten}"

    def activation_counts(self) -> dict[int, npt.NDArray[np.int64]]:
        """By layer, how often each neuron fired (or each expert was chosen) since the executor was opened.

        Empty unless the options asked for it; dense layers without exact zeros are missing.
        """
        return {} if self._counts is None else self._counts.by_layer()

    def block_inputs(self, layer: int, rows: int) -> Floats:
        """The residual stream before a feed-forward block, of the last step's first rows; see `keep_inputs`."""
        if self._inputs is None:
            raise ExecutionError("the executor was opened without keep_inputs")
        return self._inputs.of(layer, rows)

    def profile(self) -> dict[str, int]:
        """Cycles that the first thread spent in each kind of operation since the last call."""
        counts = self._team.words[Word.PROFILE : Word.PROFILE + len(Kind)]
        result = {kind.name.lower(): int(counts[kind]) for kind in Kind if counts[kind]}
        counts[:] = 0
        return result

    def close(self) -> None:
        """End the threads and free the memory. May be called twice."""
        self._team.close()
        self._pool = None
        self._tables = {}


def usable_cores() -> int:
    """Physical cores that this process may use."""
    import os

    import psutil

    logical = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    physical = psutil.cpu_count(logical=False) or logical
    return max(1, min(logical, physical))


def _rows_of(table: Tensor, indices: npt.NDArray[np.integer]) -> Floats:
    """Rows of a mapped matrix as float32."""
    part = replace(table, shape=(len(indices), table.columns), data=table.data[indices])
    return np.asarray(dequantize(part), np.float32)

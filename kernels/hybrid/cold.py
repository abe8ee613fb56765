"""The CPU's half of a step: one call a thread for all layers, waiting for the device between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from localllm.kernels.cpu.compile import KernelCompiler
from localllm.kernels.cpu.executor import usable_cores
from localllm.kernels.cpu.governor import ThreadGovernor
from localllm.kernels.cpu.isa import choose_isa
from localllm.kernels.cpu.lower_experts import refill_expert
from localllm.kernels.cpu.lowering import Environment, RopeTables
from localllm.kernels.cpu.modes import sparse_layers
from localllm.kernels.cpu.operation import Kind, Rows, build_table
from localllm.kernels.cpu.run_loop import CLAIM_FIELD
from localllm.kernels.cpu.selective_state import SelectiveState
from localllm.kernels.cpu.step_state import Word
from localllm.kernels.cpu.thread_team import ThreadTeam
from localllm.kernels.cpu.weights import Weights
from localllm.kernels.cpu.workspace import Workspace
from localllm.kernels.kv_layout import KVLayout

from .cold_turbo import cold_turbo
from .halves import SplitExperts
from .lowering import lower_cold, write_places

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from localllm.kernels.cpu.operation import Operation
    from localllm.kernels.executor import ExecutorOptions
    from localllm.kernels.spec import ModelSpec

    from .adaptive import Swap
    from .exchange import Exchange
    from .halves import Split

PAUSES_PER_SECOND = 20e6  # about, of a waiting thread
WORTH_A_THREAD = 96 << 10  # bytes of a layer: for fewer, meeting one more thread takes longer than its work


class ColdHalf:
    """Repacked weights of the units that are on the CPU, and the threads that read them."""

    def __init__(
        self,
        spec: ModelSpec,
        splits: Mapping[int, Split],
        exchange: Exchange,
        options: ExecutorOptions,
        patience: float,
    ) -> None:
        self.threads = options.threads or usable_cores()
        self._exchange = exchange
        self._spec = spec
        self._stacks = {i: s.cold.experts for i, s in splits.items() if isinstance(s, SplitExperts) and s.cold}
        self._compiler = KernelCompiler(choose_isa())
        self._team = ThreadTeam(self._compiler, self.threads)
        self._team.words[Word.PATIENCE] = int(patience * PAUSES_PER_SECOND)
        self._weights = Weights()
        self._workspace = Workspace(self.threads, options.max_rows)
        layout = KVLayout.of(spec)
        turbo = cold_turbo(spec, splits, options)
        environment = Environment(
            spec=spec,
            layout=layout,
            weights=self._weights,
            workspace=self._workspace,
            pages=(),
            logits=Rows(0, 0),
            hidden=Rows(0, 0),
            tokens=0,
            max_parts=1,
            ropes=RopeTables(),
            selective=SelectiveState(None, layout, (), [0] * len(layout.groups)),
            sparse_layers=sparse_layers(spec, "sparse" if options.mode == "turbo" else options.mode) | turbo.keys(),
            turbo=turbo,
        )

        def lowered(single: bool) -> list[Operation]:
            return lower_cold(environment, splits, exchange, single=single)

        for single in (True, False):
            lowered(single)
        self._weights.load(options.progress, self.threads)
        self._workspace.allocate()
        needed = -(-self._weights.arena.size // (WORTH_A_THREAD * max(1, len(splits))))
        self._governors = {True: ThreadGovernor(self.threads, needed), False: ThreadGovernor(self.threads)}
        operations = {single: lowered(single) for single in (True, False)}
        sources = {(o.source.name, o.source.key): o.source for table in operations.values() for o in table}
        self._compiler.compile_all(list(sources.values()), options.progress)
        self._tables = {single: build_table(table, self._compiler.compile) for single, table in operations.items()}

    def run(self, rows: int, number: int, *, spare: bool = False, noted: bool = True) -> None:
        """Compute the half of step `number`, of `rows` rows; returns when all sums are there, or a half failed.

        `spare`: one core is left to another thread, since whoever shared it would hold up all others in every layer.
        `noted`: the time counts for how many threads are best.
        """
        single, words = rows == 1, self._team.words
        table = self._tables[single]
        words[Word.OPERATIONS], words[Word.OPERATION_COUNT] = table.ctypes.data, len(table)
        words[Word.ROWS], words[Word.STEP_NUMBER] = rows, number
        table[:, CLAIM_FIELD] = 0
        governor = self._governors[single]
        threads = governor.choose()
        if spare and threads == self.threads > 1:
            threads, noted = threads - 1, False
        self._team.run(threads)
        if noted:
            governor.record(self._busy() / rows)

    def _busy(self) -> float:
        """Cycles of the last step in which the device's flags were up and the CPU's were not.

        The rest of the step is waiting for the device, which no number of threads makes shorter.
        """
        times = self._exchange.times("cpu")
        return float(np.maximum(times[:, 1] - times[:, 0], 0).sum())

    def threads_now(self) -> int:
        """How many threads the next step of a row uses."""
        return self._governors[True].choose()

    @property
    def moves_at_once(self) -> int:
        """One a layer: each has one spare place."""
        return len(self._stacks)

    def prepare(self, swap: Swap, number: int) -> None:
        """Repack the expert that leaves the device into the spare place, which no table names."""
        block = self._spec.layers[swap.layer].feed_forward
        refill_expert(self._weights, swap.layer, block, swap.outgoing, swap.spare)  # type: ignore[arg-type]

    def cross(self, count: int) -> None:
        """Nothing crosses to the CPU: it reads the file."""

    def crossed(self) -> bool:
        """At once."""
        return True

    def place(self, swap: Swap, number: int, table: npt.NDArray[np.int64]) -> None:
        """Change the table."""
        write_places(self._weights, swap.layer, table, self._stacks[swap.layer])

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights."""
        return self._weights.arena.size

    @property
    def workspace_bytes(self) -> int:
        """Bytes of what lies between operations."""
        return self._workspace.size

    def profile(self) -> dict[str, int]:
        """Cycles that the first thread spent in each kind of operation since the last call."""
        counts = self._team.words[Word.PROFILE : Word.PROFILE + len(Kind)]
        result = {kind.name.lower(): int(counts[kind]) for kind in Kind if counts[kind]}
        counts[:] = 0
        return result

    def close(self) -> None:
        """End the threads."""
        self._team.close()

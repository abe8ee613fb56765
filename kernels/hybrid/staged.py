"""The first layers of a model wholly on the CPU, the others on a device: for when not all attention fits there.

The CPU runs its layers with their keys and values, then the residual stream crosses once and the device goes on.
Nothing overlaps, so this is for budgets that are too small for halves.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from localllm.gguf_io import QuantType, Tensor
from localllm.kernels.cpu.executor import CpuExecutor
from localllm.kernels.executor import Executor, MemoryUse
from localllm.kernels.kv_layout import KVLayout
from localllm.kernels.spec import Embed, Head, Linear
from localllm.kernels.step import Output

from .placement import LayerPlacement, Placement, unit_count

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from localllm.kernels.executor import ExecutorOptions
    from localllm.kernels.kv_layout import KVType
    from localllm.kernels.spec import ModelSpec
    from localllm.kernels.step import Step

ROWS = 16  # of a table that is never read


class EnteredExecutor(Executor, Protocol):
    """An executor whose steps begin with given rows instead of embeddings."""

    def enter(self, rows: npt.NDArray[np.float32]) -> None:
        """The residual stream [M, hidden] with which the next step begins."""


def front_of(spec: ModelSpec, count: int) -> ModelSpec:
    """The first `count` layers, whose hidden vectors are the residual stream itself."""
    return replace(spec, layers=spec.layers[:count], head=Head(None, Linear(_nothing(spec.hidden_size))))


def back_of(spec: ModelSpec, count: int) -> ModelSpec:
    """All layers but the first `count`, without the embeddings."""
    return replace(spec, layers=spec.layers[count:], embed=Embed(_nothing(spec.hidden_size)))


def _nothing(columns: int) -> Tensor:
    return Tensor("nothing", QuantType.F32, (ROWS, columns), np.zeros((ROWS, 4 * columns), np.uint8))


def groups_of(spec: ModelSpec, part: ModelSpec) -> tuple[int, ...]:
    """For every cache group of a part of a model its number in the whole model."""
    whole = [group.window for group in KVLayout.of(spec).groups]
    return tuple(whole.index(group.window) for group in KVLayout.of(part).groups)


class StagedExecutor:
    """Runs the first `count` layers on the CPU, then what `make_back` makes of the others.

    Raises what loading either part raises.
    """

    def __init__(
        self,
        spec: ModelSpec,
        count: int,
        make_back: Callable[[ModelSpec, ExecutorOptions], EnteredExecutor],
        options: ExecutorOptions,
    ) -> None:
        self.spec, self.layout, self.max_rows = spec, KVLayout.of(spec), options.max_rows
        front, back = front_of(spec, count), back_of(spec, count)
        self._groups = groups_of(spec, front), groups_of(spec, back)
        pages = tuple(options.kv_pages[group] for group in self._groups[1]) if options.kv_pages else ()
        self._back = make_back(back, replace(options, kv_pages=pages))
        try:
            self._front = CpuExecutor(front, replace(options, repacked=None, vram=None, kv_pages=()))
        except BaseException:
            self._back.close()
            raise
        self._count = count
        self._parts: tuple[Executor, Executor] = self._front, self._back
        whole = [
            LayerPlacement(tuple(range(unit_count(layer.feed_forward))), gate=True) for layer in spec.layers[count:]
        ]
        self.placement = Placement((LayerPlacement((), attention=False),) * count + tuple(whole))

    def allocate_kv(self, pages: tuple[int, ...], kv_type: KVType, staging_pages: tuple[int, ...] = ()) -> None:
        """Make the page pools: of each layer where it runs."""
        for part, groups in zip(self._parts, self._groups, strict=True):
            staging = tuple(staging_pages[group] for group in groups) if staging_pages else ()
            part.allocate_kv(tuple(pages[group] for group in groups), kv_type, staging)

    def forward(self, step: Step) -> npt.NDArray[np.float32]:
        """Run at most `max_rows` rows; returns [R, vocabulary] logits or [R, hidden]. Valid until the next call."""
        rows = np.arange(len(step.tokens), dtype=np.int32)
        first, second = (self._part_of(step, part) for part in (0, 1))
        first = replace(first, output_rows=rows, output=Output.HIDDEN, hidden=None)
        self._back.enter(self._front.forward(first))
        return self._back.forward(replace(second, tokens=np.zeros_like(step.tokens)))

    def _part_of(self, step: Step, part: int) -> Step:
        """The step with the cache groups that a part has."""
        groups = self._groups[part]
        moves = tuple(replace(move, group=groups.index(move.group)) for move in step.moves if move.group in groups)
        return replace(step, groups=tuple(step.groups[group] for group in groups), moves=moves)

    def read_page(self, group: int, page: int) -> bytes:
        """A page's stored bytes over all layers of the group, those on the CPU first."""
        found = b""
        for part, groups in zip(self._parts, self._groups, strict=True):
            if group in groups:
                found += part.read_page(groups.index(group), page)
        return found

    def forget_pages(self) -> None:
        """What each part does."""
        for part in self._parts:
            part.forget_pages()

    def write_page(self, group: int, page: int, data: bytes) -> None:
        """Put back what `read_page` gave."""
        start = 0
        for part, groups in zip(self._parts, self._groups, strict=True):
            if group not in groups:
                continue
            own = groups.index(group)
            last = part is self._parts[-1] or group not in self._groups[1]
            stop = len(data) if last else start + len(part.read_page(own, page))
            part.write_page(own, page, data[start:stop])
            start = stop

    def memory(self) -> MemoryUse:
        """What is allocated now, by device."""
        front, back = (part.memory() for part in self._parts)
        return MemoryUse(front.weights | back.weights, front.kv | back.kv, front.workspace | back.workspace)

    def describe(self) -> str:
        """One line for people."""
        total = len(self.spec.layers)
        rest = f"the first {self._count} on {self._front.describe()}"
        return f"{total - self._count} of {total} layers on {self._back.describe()}; {rest}"

    def close(self) -> None:
        """Free everything; the executor is unusable afterwards. May be called twice."""
        for part in self._parts:
            part.close()


def placement_of(executor: Executor) -> Placement | None:
    """What of the model an executor has on its device; None: it is not divided."""
    from .executor import HybridExecutor

    return executor.placement if isinstance(executor, HybridExecutor | StagedExecutor) else None

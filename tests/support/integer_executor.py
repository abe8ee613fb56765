"""An executor whose keys and values are integers: what a row computes is a hash of exactly what it saw.

The content that a row stores depends on its token, its position and the contents and distances of all keys it sees, so
a wrong slot, page, mask or eviction anywhere changes every later logit. Sealing a page loses information, as
quantising does. It has the shape of a real executor and runs at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from localllm.gguf_io import QuantType, Tensor
from localllm.kernels.executor import MemoryUse
from localllm.kernels.kv_layout import PAGE_SIZE, CacheGroup, KVLayout, KVType, LayerKV
from localllm.kernels.spec import Embed, Head, Linear, ModelSpec
from localllm.kernels.step import GroupTables, Output, Step

Contents = npt.NDArray[np.uint64]
ODD = np.uint64(0x9E3779B97F4A7C15)


def mix(values: Contents) -> Contents:
    """A bijective scramble of 64-bit integers (the finaliser of splitmix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def seal(contents: Contents) -> Contents:
    """What quantising makes of a page."""
    return contents & ~np.uint64(0xFFFF)


def attention(own: Contents, keys: Contents, distances: npt.NDArray[np.int64]) -> Contents:
    """One row's new content [1] from its own [1] and the keys it sees [L] at the given distances [L]."""
    seen = mix(keys + mix(distances.astype(np.uint64) * ODD)).sum(dtype=np.uint64)
    return mix(own + seen)


def embedding(tokens: npt.NDArray[np.int32]) -> Contents:
    """What the first layer sees of tokens."""
    return mix(tokens.astype(np.uint64) + ODD)


def integer_layout(windows: Sequence[int | None]) -> KVLayout:
    """One layer a group."""
    groups = tuple(CacheGroup((index,), window) for index, window in enumerate(windows))
    return KVLayout(groups, (LayerKV(1, 1, 1),) * len(windows))


class IntegerExecutor:
    """`windows`: the native window of each layer. `script(content, token, position)` gives logits [vocabulary]; None:
    pseudo-random ones from the content."""

    def __init__(
        self,
        windows: Sequence[int | None] = (None,),
        *,
        vocabulary_size: int = 300,
        context_length: int = 4096,
        max_rows: int = 64,
        script: Callable[[int, int, int], npt.NDArray[np.float32]] | None = None,
    ) -> None:
        table = Tensor("t", QuantType.F32, (vocabulary_size, 1), np.zeros((vocabulary_size, 4), np.uint8))
        embed, head = Embed(table), Head(None, Linear(table))
        self.spec = ModelSpec("integers", "integers", vocabulary_size, 4, context_length, embed, (), head)
        self.layout = integer_layout(windows)
        self.max_rows = max_rows
        self.steps: list[Step] = []
        self.closed = False
        self.forgotten = 0
        self._windows = tuple(windows)
        self._script = script
        self._main: list[Contents] = []
        self._staging: list[Contents] = []

    def allocate_kv(self, pages: tuple[int, ...], kv_type: KVType, staging_pages: tuple[int, ...]) -> None:
        """Pools full of rubbish."""
        rubbish = np.random.default_rng(0)
        self._main = [rubbish.integers(0, 2**63, (n, PAGE_SIZE)).astype(np.uint64) for n in pages]
        self._staging = [rubbish.integers(0, 2**63, (n, PAGE_SIZE)).astype(np.uint64) for n in staging_pages]

    def forward(self, step: Step) -> npt.NDArray[np.float32]:
        """Logits, or the four 16-bit parts of the content as the hidden vector."""
        assert len(step.tokens) <= self.max_rows, "more rows than max_rows"
        self.steps.append(step)
        for move in step.moves:
            self._move(move.group, move.source, move.destination)
        x = embedding(step.tokens)
        for group, tables in enumerate(step.groups):
            x = self._layer(group, tables, step, x)
        rows = step.output_rows
        if step.output is Output.HIDDEN:
            parts = x[rows, None] >> np.array([0, 16, 32, 48], np.uint64)
            return (parts & np.uint64(0xFFFF)).astype(np.float32)
        if step.hidden is not None:
            parts = x[rows, None] >> np.array([0, 16, 32, 48], np.uint64)
            step.hidden[:] = parts & np.uint64(0xFFFF)
        return np.stack([self._logits(int(x[row]), int(step.tokens[row]), int(step.positions[row])) for row in rows])

    def _logits(self, content: int, token: int, position: int) -> npt.NDArray[np.float32]:
        if self._script is not None:
            return self._script(content, token, position)
        ids = np.arange(self.spec.vocabulary_size, dtype=np.uint64)
        return (mix(np.uint64(content) + ids * ODD) >> np.uint64(40)).astype(np.float32) * np.float32(8 / 2**24)

    def _move(self, group: int, source: int, destination: int) -> None:
        page = self._page(group, source).copy()
        sealed = source < 0 <= destination
        self._page(group, destination)[:] = seal(page) if sealed else page

    def _page(self, group: int, entry: int) -> Contents:
        page: Contents = self._main[group][entry] if entry >= 0 else self._staging[group][~entry]
        return page

    def _layer(self, group: int, tables: GroupTables, step: Step, x: Contents) -> Contents:
        pool = self._staging[group] if len(self._staging) and len(self._staging[group]) else self._main[group]
        pool.reshape(-1)[tables.slots] = x
        out = np.empty_like(x)
        for row in range(len(x)):
            sequence = int(step.sequences[row])
            index = np.arange(int(tables.row_index[row]) + 1)
            sinks = int(tables.sink_tokens[sequence])
            entries = tables.pages[sequence, : index[-1] // PAGE_SIZE + 1].tolist()
            keys = np.concatenate([self._page(group, entry) for entry in entries])[: len(index)]
            positions = np.where(index < sinks, index, tables.window_start[sequence] + index - sinks)
            own = np.full(len(index), int(step.positions[row]))
            if step.sink_positions is not None:
                own[:sinks] = step.sink_positions[row]
            distances = own - positions
            window = self._windows[group]
            if step.tree is not None:
                first = int(np.flatnonzero(step.sequences == sequence)[0])
                own_rows = np.arange(first, row + 1)
                places = tables.row_index[own_rows]
                distances[places] = step.positions[row] - step.positions[own_rows]
            visible = np.ones(len(index), bool) if window is None else distances < window
            if step.tree is not None:
                visible[places] &= step.tree.ancestors[row, own_rows]
            out[row : row + 1] = attention(x[row : row + 1], keys[visible], distances[visible])
        return out

    def read_page(self, group: int, page: int) -> bytes:
        """Stored integers."""
        return self._page(group, page).tobytes()

    def write_page(self, group: int, page: int, data: bytes) -> None:
        """Put them back."""
        self._page(group, page)[:] = np.frombuffer(data, np.uint64)

    def forget_pages(self) -> None:
        """New rubbish."""
        self.forgotten += 1
        for pool in (*self._main, *self._staging):
            pool += np.uint64(1)

    def memory(self) -> MemoryUse:
        """Nothing worth counting."""
        return MemoryUse({}, {}, {})

    def describe(self) -> str:
        """One line."""
        return "integers"

    def close(self) -> None:
        """Remembered."""
        self.closed = True

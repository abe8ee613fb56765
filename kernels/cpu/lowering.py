"""A model as operations. Every spec is lowered twice: for steps of one row, and for steps of many.

With one row each thread computes what a matrix reads (norm, quantisation) redundantly into its own memory, which saves
a barrier; with many rows the threads divide the rows. The kernels are the same, so the results are, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from localllm.gguf_io import dequantize
from localllm.kernels.spec import Attention, FeedForward

from .activation_format import refinements_of, row_bytes
from .linear import Matrix, linear
from .normalise import NormKind, NormWeights, add_normalised, normalise
from .operation import Kind, Operation, Rows, Share
from .page_types import LayerPages
from .step_state import Word

if TYPE_CHECKING:
    from localllm.kernels.kv_layout import KVLayout
    from localllm.kernels.spec import ModelSpec, Norm, Rope
    from localllm.kernels.turbo import LayerTurbo, Shortlist

    from .activation_counts import ActivationCounts
    from .activation_format import Form
    from .block_inputs import BlockInputs
    from .experts import Choice
    from .selective_state import SelectiveState
    from .weights import Weights
    from .workspace import Workspace

BLOCK = 32


def blocks_of(columns: int) -> int:
    """Blocks of 32 that hold `columns` values."""
    return -(-columns // BLOCK)


@dataclass(frozen=True, slots=True, eq=False)
class Environment:
    """What lowering builds on."""

    spec: ModelSpec
    layout: KVLayout
    weights: Weights
    workspace: Workspace
    pages: Sequence[LayerPages]
    logits: Rows
    hidden: Rows
    tokens: int  # address of the step's int64 token numbers
    max_parts: int  # parts of attention that the workspace holds
    ropes: RopeTables
    selective: SelectiveState
    sparse_layers: frozenset[int] = frozenset()  # whose feed-forward blocks skip neurons that do not fire
    turbo: Mapping[int, LayerTurbo] = field(default_factory=dict)  # what sparse layers leave out, though not zero
    shortlist: Shortlist | None = None  # which logits are computed, if not all
    counts: ActivationCounts | None = None  # where to count activations
    inputs: BlockInputs | None = None  # where to keep what feed-forward blocks read
    blocks: Mapping[int, OtherBlock] = field(default_factory=dict)  # layers whose feed-forward blocks others lower
    taps: tuple[int, ...] = ()  # layers whose output is handed out beside hidden vectors

    @property
    def tied(self) -> bool:
        """Whether embedding rows are read from the head's tiles."""
        return tied(self.spec) and self.shortlist is None

    @property
    def outputs_only(self) -> bool:
        """Whether the last layer's attention and feed-forward may run only the rows whose output is wanted.

        Later layers read all rows of a layer, through keys and values; nothing but the head reads the last one's.
        """
        number = len(self.spec.layers) - 1
        last = self.spec.layers[number]
        plain = isinstance(last.attention, Attention) and isinstance(last.feed_forward, FeedForward)
        other = number in self.sparse_layers or number in self.blocks or self.selective.policy is not None
        other = other or self.inputs is not None
        return plain and not last.parallel and not other


class OtherBlock(Protocol):
    """Lowers a layer's feed-forward block in another way: a hybrid's half of it."""

    def __call__(self, lowering: Lowering, index: int, scale: float, residual: Rows, choice: Choice | None, /) -> Rows:
        """residual + scale * block(lowering.x); `choice` if the router ran before. Returns where it is."""


class RopeTables:
    """The distinct ropes of a model; the host fills a table of factors for each at every step."""

    def __init__(self) -> None:
        self.ropes: list[Rope] = []

    def number(self, rope: Rope) -> int:
        """The index of a rope; equal ones share it."""
        for index, known in enumerate(self.ropes):
            same = np.array_equal(known.inverse_frequencies, rope.inverse_frequencies)
            if same and known.magnitude == rope.magnitude:
                return index
        self.ropes.append(rope)
        return len(self.ropes) - 1


def tied(spec: ModelSpec) -> bool:
    """Whether embedding rows are read from the head's tiles; otherwise the host reads them from the mapped file."""
    return spec.embed.table is spec.head.linear.weight and spec.embed.positions is None


class Lowering:
    """Builds the list; `x` is where the residual stream currently is."""

    def __init__(self, environment: Environment, single: bool) -> None:
        self.environment = environment
        self.single = single
        self.operations: list[Operation] = []
        self.count = Word.ROWS
        self.picked = False  # whether x has the rows whose output is wanted, and only those
        self.width = environment.spec.hidden_size
        self.blocks = blocks_of(self.width)
        self.x = self.shared("x", 4 * BLOCK * self.blocks)
        self.queues: Iterator[int] | None = None  # for operations whose work threads take piece by piece

    # What blocks are made of

    def add(self, *operations: Operation) -> None:
        """Append operations."""
        self.operations.extend(operations)

    def shared(self, name: str, row_bytes: int) -> Rows:
        """A buffer of rows that all threads see."""
        return self.environment.workspace.shared(name, row_bytes)

    def local(self, name: str, row_bytes: int) -> Rows:
        """A buffer for what every thread may compute for itself: private with one row, shared with many."""
        if self.single:
            return self.environment.workspace.private(f"own {name}", row_bytes)
        return self.shared(f"all {name}", row_bytes)

    def queue(self) -> int | None:
        """The queue of the next operation, if its work is to be taken from one."""
        return None if self.queues is None else next(self.queues)

    @property
    def everyone(self) -> Share:
        """All rows: by every thread with one row, divided with many."""
        return Share(self.count, all_threads=self.single)

    @property
    def divided(self) -> Share:
        """All rows, each by one thread."""
        return Share(self.count)

    def norm(self, name: str, norm: Norm | None, width: int) -> NormWeights:
        """A norm over rows; `name` identifies its vectors."""
        if norm is None:
            return NormWeights(NormKind.NONE, width)
        weights = self.environment.weights
        size = BLOCK * blocks_of(width)

        def vector(tensor: object, missing: float) -> Callable[[], np.ndarray[tuple[int], np.dtype[np.float32]]]:
            def make() -> np.ndarray[tuple[int], np.dtype[np.float32]]:
                values = np.zeros(size, np.float32)
                values[:width] = missing if tensor is None else dequantize(tensor).reshape(-1)  # type: ignore[arg-type]
                return values

            return make

        gain = weights.vector(f"{name} gain", vector(norm.weight, 1.0))
        if not norm.subtract_mean:
            return NormWeights(NormKind.RMS, width, gain, 0, norm.eps)
        bias = weights.vector(f"{name} bias", vector(norm.bias, 0.0))
        return NormWeights(NormKind.LAYER, width, gain, bias, norm.eps)

    def prepare(
        self,
        name: str,
        norm: NormWeights,
        source: Rows,
        blocks: int,
        formats: Sequence[Form],
        *,
        row_list: int = 0,
        kind: Kind = Kind.NORM,
    ) -> dict[Form, Rows]:
        """norm(source) as matrix kernels read it, in every format that is asked for."""
        result = {}
        distinct = list(dict.fromkeys(formats))
        for target_format in distinct:
            refinements = 0 if norm.kind is NormKind.NONE else refinements_of(target_format, blocks)
            target = self.local(f"{name} {target_format.name}", row_bytes(target_format, blocks, refinements))
            target = replace(target, refinements=refinements)
            last = target_format is distinct[-1]
            self.add(
                normalise(
                    norm,
                    source=source,
                    target=target,
                    blocks=blocks,
                    target_format=target_format,
                    share=self.everyone,
                    row_list=row_list,
                    kind=kind,
                    barrier=last and not self.single,
                )
            )
            result[target_format] = target
        return result

    def add_to_residual(
        self,
        matrix: Matrix,
        source: Rows,
        *,
        post_norm: NormWeights,
        scale: float,
        target: str,
        residual: Rows,
        residual_list: int = 0,
        kind: Kind,
    ) -> Rows:
        """residual + scale * post_norm(matrix @ source); returns where it is."""
        row_bytes = 4 * BLOCK * self.blocks
        if post_norm.kind is NormKind.NONE:
            result = self.shared(target, row_bytes)
            self.add(
                linear(
                    matrix,
                    source=source,
                    target=result,
                    count=self.count,
                    residual=residual,
                    residual_list=residual_list,
                    scale=scale,
                    kind=kind,
                )
            )
            return result
        branch = self.shared("branch", row_bytes)
        self.add(linear(matrix, source=source, target=branch, count=self.count, kind=kind))
        return self.add_branch(
            branch, post_norm=post_norm, scale=scale, target=target, residual=residual, residual_list=residual_list
        )

    def add_branch(
        self,
        branch: Rows,
        *,
        post_norm: NormWeights,
        scale: float,
        target: str,
        residual: Rows,
        residual_list: int = 0,
    ) -> Rows:
        """residual + scale * post_norm(branch); returns where it is."""
        result = self.local(target, 4 * BLOCK * self.blocks) if self.single else self.shared(target, branch.stride)
        self.add(
            add_normalised(
                post_norm,
                residual=residual,
                source=branch,
                target=result,
                blocks=self.blocks,
                scale=scale,
                share=self.everyone,
                residual_list=residual_list,
                barrier=not self.single,
            )
        )
        return result

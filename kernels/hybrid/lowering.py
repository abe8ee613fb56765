"""Both halves of split feed-forward blocks as operations of the CPU.

The cold half waits for the device's flag, computes its sum from the residual stream that the device left (norm and
rounding are those of a whole block), and raises its own flag. The hot half stands for a device where there is none.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from localllm.kernels.cpu.activation_format import FLOATS
from localllm.kernels.cpu.experts import Choice, sort_by_expert
from localllm.kernels.cpu.linear import ExpertRows, linear
from localllm.kernels.cpu.lower_experts import add_experts, lower_router, routing_of
from localllm.kernels.cpu.lower_feed_forward import down_matrix, neurons, neurons_of, padded_order
from localllm.kernels.cpu.lower_sparse import add_sparse
from localllm.kernels.cpu.lowering import Lowering
from localllm.kernels.cpu.normalise import NormKind, NormWeights, add_normalised, normalise
from localllm.kernels.cpu.operation import Kind
from localllm.kernels.cpu.page_types import padded
from localllm.kernels.cpu.step_state import MAX_QUEUES

from .choice import divide_choice, drop_absent
from .halves import SplitExperts, SplitFeedForward
from .meeting import raise_flag, wait_for

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from localllm.kernels.cpu.lowering import Environment
    from localllm.kernels.cpu.operation import Operation, Rows
    from localllm.kernels.cpu.weights import Weights
    from localllm.kernels.spec import MixtureOfExperts

    from .exchange import Exchange
    from .halves import Split

BLOCK = 32


def lower_cold(
    environment: Environment, splits: Mapping[int, Split], exchange: Exchange, *, single: bool
) -> list[Operation]:
    """The CPU's half of every split layer, in the order of a step."""
    lowering = Lowering(environment, single)
    for index, split in sorted(splits.items()):
        lowering.x = exchange.rows("x")
        lowering.queues = iter(range(MAX_QUEUES))
        lowering.add(wait_for(exchange, "device", index))
        target = exchange.rows("y")
        if isinstance(split, SplitExperts):
            source = exchange.address("chosen"), exchange.address("shares")
            _mixture(lowering, index, split, source, exchange, hot=False, target=target)
        else:
            _dense(lowering, index, split, exchange, hot=False, target=target)
        lowering.add(raise_flag(exchange, "cpu", index))
    return lowering.operations


class HotBlocks:
    """The device's half of split layers, on the CPU."""

    def __init__(self, splits: Mapping[int, Split], exchange: Exchange) -> None:
        self._splits, self._exchange = splits, exchange

    def __call__(self, lowering: Lowering, index: int, scale: float, residual: Rows, choice: Choice | None, /) -> Rows:
        """residual + scale * post_norm(hot + cold); returns where it is."""
        split, exchange = self._splits[index], self._exchange
        name = f"layer {index} feed-forward"
        branch: Rows | None = lowering.shared("branch", 4 * BLOCK * lowering.blocks)
        lowering.add(_copy(lowering, lowering.x, exchange.rows("x")))
        if isinstance(split, SplitExperts):
            self._route(lowering, index, split, choice, branch)
        else:
            self._neurons(lowering, index, split, branch)
        lowering.add(wait_for(exchange, "cpu", index))
        total = exchange.rows("y")
        if split.hot is not None and branch is not None:
            total = lowering.local("both halves", branch.stride)
            lowering.add(
                add_normalised(
                    NormWeights(NormKind.NONE, lowering.width),
                    residual=exchange.rows("y"),
                    source=branch,
                    target=total,
                    blocks=lowering.blocks,
                    scale=1.0,
                    share=lowering.everyone,
                    barrier=not lowering.single,
                )
            )
        post_norm = lowering.norm(f"{name} post norm", split.block.post_norm, lowering.width)
        return lowering.add_branch(total, post_norm=post_norm, scale=scale, target="x", residual=residual)

    def _neurons(self, lowering: Lowering, index: int, split: SplitFeedForward, branch: Rows | None) -> None:
        exchange = self._exchange
        if split.gate is not None:
            _gates(lowering, index, split, exchange)
        lowering.add(raise_flag(exchange, "device", index))
        if split.hot is not None and branch is not None:
            _dense(lowering, index, split, exchange, hot=True, target=branch)

    def _route(
        self, lowering: Lowering, index: int, split: SplitExperts, choice: Choice | None, branch: Rows | None
    ) -> None:
        exchange, block = self._exchange, split.block
        if choice is None:
            norm = lowering.norm(f"layer {index} experts norm", block.norm, lowering.width)
            source = lowering.prepare("x", norm, lowering.x, lowering.blocks, [FLOATS])[FLOATS]
            choice = lower_router(lowering, index, block, source)
        if branch is not None:
            source_of = choice.chosen, choice.weights
            _mixture(lowering, index, split, source_of, exchange, hot=True, target=branch)


def _copy(lowering: Lowering, source: Rows, target: Rows) -> Operation:
    """Rows as they are."""
    nothing = NormWeights(NormKind.NONE, lowering.width)
    return normalise(
        nothing,
        source=source,
        target=target,
        blocks=lowering.blocks,
        target_format=FLOATS,
        share=lowering.divided,
        kind=Kind.WAIT,
    )


def _gates(lowering: Lowering, index: int, split: SplitFeedForward, exchange: Exchange) -> None:
    """The gates of all neurons, those of the hot half first, where the other half sees them."""
    block, gate = split.block, split.gate
    if gate is None:
        return
    name = f"layer {index} feed-forward"
    norm = lowering.norm(f"{name} norm", block.norm, lowering.width)
    order = padded_order(gate.weight.rows)
    matrix = lowering.environment.weights.matrix(f"{name} all gates", [gate.weight], order, [gate.bias])
    form = matrix.layout.activation
    source = lowering.prepare("x", norm, lowering.x, lowering.blocks, [form])[form]
    lowering.add(linear(matrix, source=source, target=exchange.rows("gate", gate.weight.rows), kind=Kind.GATE_UP))


def _dense(
    lowering: Lowering, index: int, split: SplitFeedForward, exchange: Exchange, *, hot: bool, target: Rows
) -> None:
    """target = a half's sum, without its post norm."""
    block = split.hot if hot else split.cold
    if block is None:
        return
    sparse = index in lowering.environment.sparse_layers
    if sparse:
        known = None
        if split.gate is not None:
            before = 0 if hot or split.hot is None else split.hot.up.weight.rows
            known = exchange.rows("gate", split.gate.weight.rows).at(4 * before)
        add_sparse(lowering, index, block, residual=None, scale=1.0, target=target, known_gate=known)
        return
    name = f"layer {index} feed-forward"
    down = down_matrix(lowering, name, block)
    hidden = neurons(lowering, name, block, down.layout.activation)
    lowering.add(
        linear(down, source=hidden, target=target, count=lowering.count, kind=Kind.DOWN, queue=lowering.queue())
    )


def _mixture(
    lowering: Lowering,
    index: int,
    split: SplitExperts,
    source: tuple[int, int],
    exchange: Exchange,
    *,
    hot: bool,
    target: Rows,
) -> None:
    """target = a half's share of the mixture; `source`: addresses of the chosen experts and their weights.

    The hot half publishes the choice, raises its flag and adds the shared expert.
    """
    half, name, workspace = split.hot if hot else split.cold, f"layer {index} experts", lowering.environment.workspace
    block = split.block
    count = 0 if half is None else half.experts
    table = lowering.environment.weights.blob(
        f"{name} places", lambda: np.ascontiguousarray(split.table(hot=hot)).view(np.uint8)
    )
    slots = workspace.max_rows * block.top_k

    def words(what: str, size: int) -> int:
        return workspace.words(f"half {what} {size}", 8 * size)

    own = Choice(
        chosen=words("chosen", slots),
        weights=words("weights", slots),
        slots=words("slots", slots),
        rows=words("rows", slots),
        sorted=ExpertRows(words("active", count + 2), words("starts", count + 2)),
    )
    copies = (exchange.address("chosen"), exchange.address("shares")) if hot else None
    lowering.add(
        divide_choice(
            chosen=source[0],
            weights=source[1],
            top_k=block.top_k,
            table=table,
            absent=count,
            own=own,
            copies=copies,
            uses=0 if hot else exchange.address("uses") + 8 * exchange.sizes.experts * index,
        )
    )
    if hot:
        lowering.add(raise_flag(exchange, "device", index))
    if half is None:
        return
    lowering.add(
        sort_by_expert(replace(routing_of(lowering, name, block), experts=count + 1), choice=own),
        drop_absent(active=own.sorted.active, absent=count),
    )
    _products(lowering, name, half, own, target)


def write_places(weights: Weights, index: int, table: npt.NDArray[np.int64], stack: int) -> None:
    """Change the table of a layer's experts in a half: -1, which is an expert that is elsewhere, becomes `stack`."""
    target = weights.constant(f"layer {index} experts places").view(np.int64)
    target[: len(table)] = np.where(table < 0, stack, table)


def _products(lowering: Lowering, name: str, half: MixtureOfExperts, own: Choice, target: Rows) -> None:
    weights = lowering.environment.weights
    experts = [linear.weight for linear in (half.gate, half.up) if linear is not None]
    shared_block, shared, shared_gate = half.shared, None, None
    if shared_block is not None:
        experts += [linear.weight for linear in (shared_block.gate, shared_block.up) if linear is not None]
    norm = lowering.norm(f"{name} norm", half.norm, lowering.width)
    formats = [weights.format_of(tensor) for tensor in experts]
    sources = lowering.prepare("x", norm, lowering.x, lowering.blocks, [FLOATS, *formats])
    if shared_block is not None:
        down = down_matrix(lowering, f"{name} shared", shared_block)
        hidden = neurons_of(lowering, f"{name} shared", shared_block, sources, down.layout.activation)
        shared = lowering.shared("shared expert", 4 * BLOCK * lowering.blocks)
        lowering.add(linear(down, source=hidden, target=shared, kind=Kind.EXPERTS, barrier=False))
    if half.shared_gate is not None:
        gate = half.shared_gate
        matrix = weights.matrix(f"{name} shared gate", [gate.weight], biases=[gate.bias], exact=True)
        shared_gate = lowering.shared("shared gate", 4 * padded(1))
        lowering.add(linear(matrix, source=sources[FLOATS], target=shared_gate, kind=Kind.EXPERTS, barrier=False))
    add_experts(
        lowering,
        name,
        half,
        sources,
        own,
        shared=shared,
        shared_gate=shared_gate,
        residual=None,
        scale=1.0,
        target=target,
    )

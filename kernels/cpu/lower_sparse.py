"""Feed-forward blocks of ReLU models as operations that skip the neurons that do not fire.

The gate (or, without one, the up matrix) is computed for every neuron, on tiles; then the up rows and down columns of
the neurons with a positive result. Their inputs stay float32, so what is left out is exactly zero and what is computed
is at least as accurate as on tiles.

In mode turbo a layer may have scores that say which neurons to compute, see `kernels.turbo`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from localllm.gguf_io import dequantize
from localllm.kernels.spec import Activation, FeedForward
from localllm.kernels.turbo import Scores

from .activation_format import FLOATS
from .linear import linear
from .lower_feed_forward import padded_order
from .lower_guess import add_guess, thresholds_of
from .lowering import BLOCK, Lowering, blocks_of
from .normalise import NormKind
from .operation import Kind, Rows
from .page_types import padded
from .sparse.active import ActiveLists, active_bytes, compact, count_active
from .sparse.codes import codes_of, units_of
from .sparse.columns import NeuronColumns, down_columns, form_of, pack_columns, sizes_of
from .sparse.gates import asking_gates
from .sparse.levels import level_rows, levels_bytes
from .sparse.neurons import NeuronRecords, active_neurons, sum_rows
from .sparse.part_sums import add_sums
from .sparse.records import RecordForm, pack_records, pack_scales, record_form, scales_size
from .sparse.rows import NeuronRows, pack_rows, row_bytes, up_rows

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from localllm.gguf_io import Tensor
    from localllm.kernels.spec import Layer


@dataclass(frozen=True, slots=True)
class SparseSupport:
    """Layers that can skip neurons, and in words why others of the same activation cannot."""

    layers: frozenset[int]
    obstacles: tuple[str, ...]


def sparse_support(layers: Iterable[Layer], turbo: Container[int] = ()) -> SparseSupport:
    """Which feed-forward blocks have zeros to skip and types whose columns can be had alone.

    `turbo`: layers that skip neurons whether these are zero or not.
    """
    able: set[int] = set()
    obstacles: dict[str, None] = {}  # in the order they are met
    for index, layer in enumerate(layers):
        block = layer.feed_forward
        if not block.activation.sparse and index not in turbo:
            continue
        if not isinstance(block, FeedForward):
            obstacles["mixtures of experts"] = None
            continue
        needed = [block.down, *([block.up] if block.gate is not None else [])]
        missing = [one.weight.quant_type.name for one in needed if codes_of(one.weight.quant_type) is None]
        if missing:
            obstacles.update(dict.fromkeys(missing))
        else:
            able.add(index)
    return SparseSupport(frozenset(able), tuple(obstacles))


def lower_sparse(lowering: Lowering, index: int, block: FeedForward, scale: float, residual: Rows) -> Rows:
    """residual + scale * feed_forward(x); returns where it is. The block must be of those `sparse_support` names."""
    name = f"layer {index} feed-forward"
    post_norm = lowering.norm(f"{name} post norm", block.post_norm, lowering.width)
    plain = post_norm.kind is NormKind.NONE
    target = lowering.shared("x" if plain else "branch", 4 * BLOCK * lowering.blocks)
    add_sparse(
        lowering,
        index,
        block,
        residual=residual if plain else None,
        scale=scale if plain else 1.0,
        target=target,
    )
    if plain:
        return target
    return lowering.add_branch(target, post_norm=post_norm, scale=scale, target="x", residual=residual)


def add_sparse(
    lowering: Lowering,
    index: int,
    block: FeedForward,
    *,
    residual: Rows | None,
    scale: float,
    target: Rows,
    known_gate: Rows | None = None,
) -> None:
    """target = residual + scale * feed_forward(x) without its post norm; `known_gate`: the gates are there already.

    Scores that are a guess are not needed where the gates are known.
    """
    name = f"layer {index} feed-forward"
    neurons = block.up.weight.rows
    blocks = blocks_of(neurons)
    weights, workspace = lowering.environment.weights, lowering.environment.workspace
    norm = lowering.norm(f"{name} norm", block.norm, lowering.width)
    count = lowering.count

    records = record_form(None if block.gate is None else block.up.weight, block.down.weight, block.down_transposed)
    turbo = lowering.environment.turbo.get(index)
    thresholds = thresholds_of(lowering, name, turbo) if turbo and turbo.scores is Scores.GATE else 0
    guess = None if turbo is None or turbo.scores is Scores.GATE or known_gate is not None else turbo
    floats = [FLOATS] if block.gate is not None else []
    active = ActiveLists(lowering.local("active neurons", active_bytes(blocks)), blocks)
    if guess is not None:
        sources = add_guess(lowering, index, block, guess, active)
    else:
        if known_gate is None:
            first = block.gate or block.up
            part = "up" if block.gate is None else "gate"
            matrix = weights.matrix(f"{name} {part}", [first.weight], padded_order(neurons), [first.bias])
            form = matrix.layout.activation
            sources = lowering.prepare("x", norm, lowering.x, lowering.blocks, [form, *floats])
            gate = workspace.shared("sparse gate", 4 * BLOCK * blocks)
            if lowering.single and records is not None:
                noted = workspace.private("noted neurons", 4 * BLOCK * (blocks + 1))
                layer = _records(lowering, name, block, records)
                lowering.add(
                    asking_gates(
                        matrix,
                        layer,
                        activation=block.activation,
                        source=sources[form],
                        target=gate,
                        noted=noted,
                        thresholds=thresholds,
                    )
                )
            else:
                lowering.add(linear(matrix, source=sources[form], target=gate, count=count, kind=Kind.GATE_UP))
        else:
            gate = known_gate
            sources = lowering.prepare("x", norm, lowering.x, lowering.blocks, [FLOATS])
        lowering.add(
            compact(
                block.activation,
                gate=gate,
                active=active,
                share=lowering.everyone,
                kind=Kind.GATE_UP,
                barrier=not lowering.single,
                thresholds=thresholds,
            )
        )
    if lowering.environment.counts is not None:
        address = lowering.environment.counts.address(index, neurons)
        lowering.add(count_active(active=active, counts=address, count=count, kind=Kind.GATE_UP))
    source = sources[FLOATS] if block.gate is not None else None
    if records is None:
        _add_runs(lowering, name, block, source, active, residual=residual, scale=scale, target=target)
    else:
        _add_records(lowering, name, block, records, source, active, residual=residual, scale=scale, target=target)


def _add_records(
    lowering: Lowering,
    name: str,
    block: FeedForward,
    form: RecordForm,
    source: Rows | None,
    active: ActiveLists,
    *,
    residual: Rows | None,
    scale: float,
    target: Rows,
) -> None:
    """The neurons that fire, a record each."""
    workspace, count = lowering.environment.workspace, lowering.count
    records = _records(lowering, name, block, form)
    if source is not None and form.up is not None:
        levels = lowering.local("x levels", levels_bytes(form.blocks))
        lowering.add(
            level_rows(
                source=source,
                target=levels,
                blocks=form.blocks,
                zero_point=0 if form.up.minimum else form.up.zero_point,
                share=lowering.everyone,
                kind=Kind.GATE_UP,
                barrier=not lowering.single,
            )
        )
        source = levels
    row = 4 * records.outputs
    sums = workspace.shared("sparse parts", row, sum_rows(records, workspace.max_rows))
    lowering.add(
        active_neurons(
            records,
            source=source,
            active=active,
            sums=sums,
            part_sum=workspace.private("sparse part", row),
            positive=block.activation is Activation.RELU_BOTH and source is not None,
            count=count,
            kind=Kind.DOWN,
        ),
        add_sums(
            sums=sums,
            parts=records.parts,
            bias=_bias(lowering, f"{name} down columns", block.down.bias),
            target=target,
            residual=residual,
            scale=scale,
            width=padded(block.down.weight.rows),
            count=count,
            kind=Kind.DOWN,
        ),
    )


def _records(lowering: Lowering, name: str, block: FeedForward, form: RecordForm) -> NeuronRecords:
    weights, neurons = lowering.environment.weights, block.down.weight.columns
    up, down = None if form.up is None else block.up.weight, block.down.weight
    address = weights.region(
        f"{name} records", neurons * form.size, lambda target: pack_records(form, up, down, target)
    )
    size = scales_size(form, neurons)
    scales = weights.region(
        f"{name} down scales",
        size * (1 + form.down.minimum),
        lambda target: pack_scales(form, down, target[:size], target[size:]),
    )
    bias = 0 if form.up is None else _bias(lowering, f"{name} up rows", block.up.bias)
    return NeuronRecords(form, address, scales, scales + size, bias, blocks_of(neurons))


def _add_runs(
    lowering: Lowering,
    name: str,
    block: FeedForward,
    source: Rows | None,
    active: ActiveLists,
    *,
    residual: Rows | None,
    scale: float,
    target: Rows,
) -> None:
    """The neurons that fire, up rows and down columns for themselves."""
    workspace, count, blocks = lowering.environment.workspace, lowering.count, active.blocks
    hidden = None
    if source is not None:
        hidden = workspace.shared("sparse hidden", 4 * BLOCK * (blocks + 1))
        lowering.add(
            up_rows(
                _rows(lowering, f"{name} up rows", block.up.weight, block.up.bias),
                source=source,
                active=active,
                hidden=hidden,
                positive=block.activation is Activation.RELU_BOTH,
                count=count,
                kind=Kind.GATE_UP,
            )
        )
    columns = _columns(lowering, name, block)
    lowering.add(
        down_columns(
            columns,
            active=active,
            hidden=hidden,
            sums=workspace.shared("sparse sums", 4 * BLOCK * columns.units),
            target=target,
            residual=residual,
            scale=scale,
            width=padded(columns.outputs),
            count=count,
            kind=Kind.DOWN,
        )
    )


def _rows(lowering: Lowering, name: str, weight: Tensor, bias: Tensor | None) -> NeuronRows:
    codes, units = codes_of(weight.quant_type), units_of(weight.columns)
    assert codes is not None  # by `sparse_support`
    size = weight.rows * row_bytes(codes, units)
    weights = lowering.environment.weights
    address = weights.region(name, size, lambda target: pack_rows(codes, weight, target))
    return NeuronRows(codes, address, units, _bias(lowering, name, bias))


def _columns(lowering: Lowering, name: str, block: FeedForward) -> NeuronColumns:
    weight, transposed = block.down.weight, block.down_transposed
    codes = codes_of(weight.quant_type)
    assert codes is not None  # by `sparse_support`
    outputs, neurons = (weight.columns, weight.rows) if transposed else (weight.rows, weight.columns)
    form = form_of(codes, transposed)
    sizes = sizes_of(codes, form, outputs, neurons)
    ends = np.cumsum([sizes.columns, sizes.scales, sizes.minimums])
    address = lowering.environment.weights.region(
        f"{name} down columns",
        int(ends[-1]),
        lambda target: pack_columns(codes, weight, transposed, *np.split(target, ends[:-1])),
    )
    bias = _bias(lowering, f"{name} down columns", block.down.bias)
    return NeuronColumns(
        codes, form, address, address + sizes.columns, address + int(ends[1]), outputs, blocks_of(neurons), bias
    )


def _bias(lowering: Lowering, name: str, bias: Tensor | None) -> int:
    if bias is None:
        return 0
    return lowering.environment.weights.vector(
        f"{name} bias", lambda: np.asarray(dequantize(bias), np.float32).reshape(-1)
    )

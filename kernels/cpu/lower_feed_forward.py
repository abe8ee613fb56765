"""Dense feed-forward blocks as operations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from localllm.gguf_io import QuantType, Tensor, dequantize

from .activation_format import row_bytes
from .linear import ExpertRows, Matrix, gated, linear
from .lowering import BLOCK, Lowering, blocks_of
from .normalise import activate
from .operation import Kind, Rows, Share
from .step_state import Word
from .weights import same_type

if TYPE_CHECKING:
    import numpy.typing as npt

    from localllm.kernels.spec import FeedForward, MixtureOfExperts

    from .activation_format import Form


def lower_feed_forward(lowering: Lowering, index: int, block: FeedForward, scale: float, residual: Rows) -> Rows:
    """residual + scale * feed_forward(x); returns where it is."""
    name = f"layer {index} feed-forward"
    post_norm = lowering.norm(f"{name} post norm", block.post_norm, lowering.width)
    down = down_matrix(lowering, name, block)
    hidden = neurons(lowering, name, block, down.layout.activation)
    return lowering.add_to_residual(
        down, hidden, post_norm=post_norm, scale=scale, target="x", residual=residual, kind=Kind.DOWN
    )


def neurons(lowering: Lowering, name: str, block: FeedForward, target_format: Form) -> Rows:
    """activation(gate(norm(x))) * up(norm(x)), in the format that the down matrix reads."""
    norm = lowering.norm(f"{name} norm", block.norm, lowering.width)
    tensors = [linear.weight for linear in (block.gate, block.up) if linear is not None]
    formats = [lowering.environment.weights.format_of(tensor) for tensor in tensors]
    sources = lowering.prepare("x", norm, lowering.x, lowering.blocks, formats)
    return neurons_of(lowering, name, block, sources, target_format)


def neurons_of(
    lowering: Lowering,
    name: str,
    block: FeedForward | MixtureOfExperts,
    sources: dict[Form, Rows],
    target_format: Form,
    experts: ExpertRows | None = None,
    count: Word | None = None,
    rows: int | None = None,
) -> Rows:
    """The same, from prepared activations; with `experts` for sorted slots (`rows` of them at most)."""
    count = lowering.count if count is None else count
    blocks = blocks_of(block.up.weight.rows)
    workspace = lowering.environment.workspace
    kind = Kind.GATE_UP if experts is None else Kind.EXPERTS
    target = workspace.shared(f"neurons {target_format.name} {kind.name}", row_bytes(target_format, blocks), rows)
    if block.gate is not None and same_type(block.gate.weight, block.up.weight):
        matrix = gate_up_matrix(lowering, name, block)
        source = sources[matrix.layout.activation]
        lowering.add(
            gated(
                matrix,
                block.activation,
                source=source,
                target=target,
                target_format=target_format,
                experts=experts,
                count=count,
                kind=kind,
                queue=lowering.queue(),
            )
        )
        return target
    results: list[Rows | None] = []
    for part, one in (("gate", block.gate), ("up", block.up)):
        if one is None:
            results.append(None)
            continue
        order = padded_order(one.weight.rows)
        matrix = lowering.environment.weights.matrix(f"{name} {part}", [one.weight], order, [one.bias])
        out = workspace.shared(f"{part} {kind.name}", 4 * BLOCK * blocks, rows)
        source = sources[matrix.layout.activation]
        last = part == "up"
        lowering.add(linear(matrix, source=source, target=out, experts=experts, count=count, kind=kind, barrier=last))
        results.append(out)
    gate, up = results
    assert up is not None
    lowering.add(
        activate(
            block.activation,
            gate=gate,
            up=up,
            target=target,
            blocks=blocks,
            target_format=target_format,
            share=Share(count),
            kind=kind,
        )
    )
    return target


def padded_order(rows: int) -> npt.NDArray[np.int64]:
    """Rows as they are, padded with -1 to whole blocks."""
    return np.concatenate([np.arange(rows), np.full(-rows % BLOCK, -1)])


def gate_up_matrix(lowering: Lowering, name: str, block: FeedForward | MixtureOfExperts) -> Matrix:
    """For every 32 neurons two tiles of gate rows, then two of up rows: one stream for the fused kernel."""
    assert block.gate is not None
    rows = block.up.weight.rows
    order = padded_order(rows).reshape(-1, 1, BLOCK)
    both = np.concatenate([order, np.where(order < 0, -1, order + rows)], axis=1).reshape(-1)
    gate, up = block.gate, block.up
    return lowering.environment.weights.matrix(f"{name} gate up", [gate.weight, up.weight], both, [gate.bias, up.bias])


def down_matrix(lowering: Lowering, name: str, block: FeedForward | MixtureOfExperts) -> Matrix:
    """The down matrix; one that is stored a row a neuron is turned over and kept as float16."""
    weight = block.down.weight
    if block.down_transposed:
        weight = lowering.environment.weights.derived(f"{name} down turned", lambda: turned(block.down.weight))
    return lowering.environment.weights.matrix(f"{name} down", [weight], biases=[block.down.bias])


def turned(tensor: Tensor) -> Tensor:
    """A matrix, or a stack, whose rows are neurons as one whose columns are, in float16."""
    values = dequantize(tensor).astype(np.float16).swapaxes(-1, -2)
    data = np.ascontiguousarray(values).view(np.uint8)
    return Tensor(f"{tensor.name} turned", QuantType.F16, values.shape, data.reshape(*values.shape[:-1], -1))

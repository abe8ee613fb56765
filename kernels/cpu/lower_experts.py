"""Mixtures of experts as operations."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from localllm.gguf_io import dequantize

from .activation_format import FLOATS
from .experts import Choice, Routing, choose_experts, combine_experts, sort_by_expert
from .linear import ExpertRows, linear
from .lower_feed_forward import down_matrix, neurons_of, turned
from .lowering import BLOCK, Lowering
from .normalise import NormKind
from .operation import Kind, Rows
from .page_types import padded
from .sparse.active import count_experts
from .step_state import Word
from .weights import same_type

if TYPE_CHECKING:
    import numpy.typing as npt

    from localllm.gguf_io import Tensor
    from localllm.kernels.spec import Linear, MixtureOfExperts

    from .activation_format import Form
    from .weights import Weights


def lower_router(
    lowering: Lowering,
    index: int,
    block: MixtureOfExperts,
    source: Rows | None,
) -> Choice:
    """Choose experts by `source` (prepared float32 rows), or by the residual stream as it is now."""
    name = f"layer {index} experts"
    routing = routing_of(lowering, name, block)
    matrix = lowering.environment.weights.matrix(
        f"{name} router", [block.router.weight], biases=[block.router.bias], exact=True
    )
    logits = lowering.shared("router logits", 4 * padded(block.experts))
    lowering.add(linear(matrix, source=source or lowering.x, target=logits, kind=Kind.ROUTER))
    choice = choice_of(lowering, block)
    lowering.add(
        choose_experts(routing, logits=logits, choice=choice, share=lowering.divided),
        sort_by_expert(routing, choice=choice),
    )
    if lowering.environment.counts is not None:
        address = lowering.environment.counts.address(index, block.experts)
        lowering.add(count_experts(sorted_rows=choice.sorted, counts=address, experts=block.experts))
    return choice


def lower_experts(
    lowering: Lowering,
    index: int,
    block: MixtureOfExperts,
    scale: float,
    residual: Rows,
    choice: Choice | None,
) -> Rows:
    """residual + scale * mixture(x); `choice` if the router ran before. Returns where it is."""
    name = f"layer {index} experts"
    weights = lowering.environment.weights
    experts = [linear.weight for linear in (block.gate, block.up) if linear is not None]
    shared_tensors = []
    if block.shared is not None:
        shared_tensors = [linear.weight for linear in (block.shared.gate, block.shared.up) if linear is not None]
    formats = [weights.format_of(tensor) for tensor in (*experts, *shared_tensors)]
    norm = lowering.norm(f"{name} norm", block.norm, lowering.width)
    sources = lowering.prepare("x", norm, lowering.x, lowering.blocks, [FLOATS, *formats])
    shared = shared_gate = None
    if block.shared is not None:
        shared_down = down_matrix(lowering, f"{name} shared", block.shared)
        hidden = neurons_of(lowering, f"{name} shared", block.shared, sources, shared_down.layout.activation)
        shared = lowering.shared("shared expert", 4 * BLOCK * lowering.blocks)
        lowering.add(linear(shared_down, source=hidden, target=shared, kind=Kind.EXPERTS, barrier=False))
    if block.shared_gate is not None:
        gate = block.shared_gate
        matrix = weights.matrix(f"{name} shared gate", [gate.weight], biases=[gate.bias], exact=True)
        shared_gate = lowering.shared("shared gate", 4 * padded(1))
        lowering.add(linear(matrix, source=sources[FLOATS], target=shared_gate, kind=Kind.EXPERTS, barrier=False))
    if choice is None:
        choice = lower_router(lowering, index, block, sources[FLOATS])
    post_norm = lowering.norm(f"{name} post norm", block.post_norm, lowering.width)
    plain = post_norm.kind is NormKind.NONE
    row_bytes = 4 * BLOCK * lowering.blocks
    if plain:
        target = lowering.local("x", row_bytes) if lowering.single else lowering.shared("x", row_bytes)
    else:
        target = lowering.local("branch", row_bytes)
    add_experts(
        lowering,
        name,
        block,
        sources,
        choice,
        shared=shared,
        shared_gate=shared_gate,
        residual=residual if plain else None,
        scale=scale if plain else 1.0,
        target=target,
    )
    if plain:
        return target
    return lowering.add_branch(target, post_norm=post_norm, scale=scale, target="x", residual=residual)


def add_experts(
    lowering: Lowering,
    name: str,
    block: MixtureOfExperts,
    sources: dict[Form, Rows],
    choice: Choice,
    *,
    shared: Rows | None,
    shared_gate: Rows | None,
    residual: Rows | None,
    scale: float,
    target: Rows,
) -> None:
    """target = residual + scale * (the chosen experts of x + the shared one), from prepared activations."""
    down = down_matrix(lowering, name, block)
    slots = lowering.environment.workspace.max_rows * block.top_k
    first = ExpertRows(choice.sorted.active, choice.sorted.starts, choice.rows)
    hidden = neurons_of(
        lowering, name, block, sources, down.layout.activation, experts=first, count=Word.EXPERT_ROWS, rows=slots
    )
    outputs = lowering.environment.workspace.shared("expert outputs", 4 * BLOCK * lowering.blocks, slots)
    second = ExpertRows(choice.sorted.active, choice.sorted.starts)
    lowering.add(
        linear(
            down,
            source=hidden,
            target=outputs,
            experts=second,
            count=Word.EXPERT_ROWS,
            kind=Kind.EXPERTS,
            queue=lowering.queue(),
        )
    )
    private = lowering.single and target.thread_stride > 0
    lowering.add(
        combine_experts(
            routing_of(lowering, name, block),
            choice=choice,
            outputs=outputs,
            shared=shared,
            shared_gate=shared_gate,
            residual=residual,
            target=target,
            columns=lowering.blocks * BLOCK,
            scale=scale,
            share=lowering.everyone if private else lowering.divided,
            barrier=not private,
        )
    )


def refill_expert(weights: Weights, index: int, block: MixtureOfExperts, expert: int, place: int) -> None:
    """Put an expert of a whole mixture into a place of loaded stacks that hold some of its experts."""
    name, gate, up, down = f"layer {index} experts", block.gate, block.up, block.down

    def part(linear: Linear) -> tuple[Tensor, Tensor | None]:
        bias = linear.bias
        if bias is None:
            return linear.weight.expert(expert), None
        return linear.weight.expert(expert), replace(bias, shape=bias.shape[1:], data=_bias_row(bias, expert))

    def fill(what: str, *linears: Linear) -> None:
        parts = [part(linear) for linear in linears]
        weights.refill(f"{name} {what}", place, [weight for weight, _ in parts], [bias for _, bias in parts])

    if gate is not None and same_type(gate.weight, up.weight):
        fill("gate up", gate, up)
    else:
        for what, linear in (("gate", gate), ("up", up)):
            if linear is not None:
                fill(what, linear)
    weight, bias = part(down)
    weights.refill(f"{name} down", place, [turned(weight) if block.down_transposed else weight], [bias])


def _bias_row(bias: Tensor, expert: int) -> npt.NDArray[np.uint8]:
    row: npt.NDArray[np.uint8] = bias.data.reshape(bias.shape[0], -1)[expert]
    return row


def routing_of(lowering: Lowering, name: str, block: MixtureOfExperts) -> Routing:
    """How the router of a block chooses and weighs its experts."""
    bias = 0
    if block.selection_bias is not None:
        tensor = block.selection_bias
        bias = lowering.environment.weights.vector(
            f"{name} selection bias", lambda: dequantize(tensor).astype(np.float32).reshape(-1)
        )
    return Routing(
        experts=block.experts,
        top_k=block.top_k,
        gating=block.gating,
        normalise=block.normalise,
        weight_scale=block.weight_scale,
        bias=bias,
        biased=block.selection_bias is not None,
    )


def choice_of(lowering: Lowering, block: MixtureOfExperts) -> Choice:
    """Where a block's choice of experts lies, for all rows of a step."""
    workspace = lowering.environment.workspace
    slots = workspace.max_rows * block.top_k

    def words(name: str, count: int) -> int:
        return workspace.words(f"expert {name} {count}", 8 * count)

    return Choice(
        chosen=words("chosen", slots),
        weights=words("weights", slots),
        slots=words("slots", slots),
        rows=words("rows", slots),
        sorted=ExpertRows(words("active", block.experts + 1), words("starts", block.experts + 1)),
    )

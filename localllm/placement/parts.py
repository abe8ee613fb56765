"""A model as the planner sees it: bytes of each part, and how often each part is read.

The unit of placement in a feed-forward block is a group of `GROUP` neurons (gate rows, up rows, down columns) or an
expert. In a sparse (ReLU) block the gate is read for every token and the rest of a neuron only when it fires, so the
gate is a part of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from localllm.cache import bytes_of_layers
from localllm.kernels.executor import ExecutorOptions
from localllm.kernels.kv_layout import KVLayout
from localllm.kernels.spec import Attention, FeedForward, LatentAttention, Linear, MixtureOfExperts, ModelSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from localllm.kernels.kv_layout import KVType

GROUP = 32  # neurons; the exact granularity of 32-value blocks along the down matrix's columns
DENSITY_WITHOUT_PROFILE = 0.15  # share of neurons that fire in a ReLU block when nothing was measured


@dataclass(frozen=True, slots=True, eq=False)
class FeedForwardParts:
    """`gate_bytes` (sparse blocks only) are read for every token; `units` are groups of neurons or experts.

    `unit_bytes` are stored per unit, `frequency` [units] is the expected share of them that a token reads, and
    `fixed_bytes` (router, shared expert, norms) go wherever attention goes.
    """

    gate_bytes: int
    unit_bytes: int
    frequency: npt.NDArray[np.float64]
    fixed_bytes: int

    @property
    def units(self) -> int:
        """Groups of neurons, or experts."""
        return len(self.frequency)

    @property
    def nbytes(self) -> int:
        """All bytes of the block."""
        return self.gate_bytes + self.unit_bytes * self.units + self.fixed_bytes


@dataclass(frozen=True, slots=True, eq=False)
class LayerParts:
    """A layer: bytes of its attention weights, of its KV for the whole context, and its feed-forward parts."""

    attention_bytes: int
    kv_bytes: int
    feed_forward: FeedForwardParts

    @property
    def nbytes(self) -> int:
        """Weights and KV."""
        return self.attention_bytes + self.kv_bytes + self.feed_forward.nbytes


@dataclass(frozen=True, slots=True, eq=False)
class ModelParts:
    """A model for a context length. The embedding table stays in main memory unless it is also the head."""

    layers: tuple[LayerParts, ...]
    head_bytes: int
    embedding_bytes: int
    tied: bool
    weights: int  # multiplications per token, for the speed of prefill
    context: int

    @property
    def nbytes(self) -> int:
        """Everything, the table of tied models once."""
        rest = self.head_bytes + (0 if self.tied else self.embedding_bytes)
        return sum(layer.nbytes for layer in self.layers) + rest


def parts_of(
    spec: ModelSpec,
    *,
    context: int,
    kv_type: KVType = "f16",
    frequencies: Sequence[npt.NDArray[np.float64] | None] | None = None,
) -> ModelParts:
    """Sizes of a model; `frequencies`, per layer, are a profile's activation rates of neurons or experts."""
    layers = []
    active = 0
    rows = ExecutorOptions().max_rows
    kv_bytes = bytes_of_layers(KVLayout.of(spec), kv_type, context=context, step_rows=rows)
    for index, layer in enumerate(spec.layers):
        profile = None if frequencies is None else frequencies[index]
        block = layer.feed_forward
        feed_forward = _experts(block, profile) if isinstance(block, MixtureOfExperts) else _neurons(block, profile)
        attention_bytes = sum(_attention(layer.attention))
        layers.append(LayerParts(attention_bytes, kv_bytes[index], feed_forward))
        active += _values(layer.attention) + _active_values(block)
    head = spec.head.linear.weight
    tied = head.name == spec.embed.table.name
    return ModelParts(
        tuple(layers), head.nbytes, spec.embed.table.nbytes, tied, active + head.rows * head.columns, context
    )


def _neurons(block: FeedForward, profile: npt.NDArray[np.float64] | None) -> FeedForwardParts:
    neurons = block.up.weight.rows
    groups = -(-neurons // GROUP)
    gate = 0 if block.gate is None else block.gate.weight.nbytes
    sparse = block.activation.sparse and block.gate is not None
    rest = block.up.weight.nbytes + block.down.weight.nbytes
    if not sparse:
        return FeedForwardParts(0, -(-(gate + rest) // groups), np.ones(groups), 0)
    if profile is None:
        frequency = np.full(groups, DENSITY_WITHOUT_PROFILE)
    else:  # neighbours in the file stay together, however hot each of them is
        rates = np.zeros(groups * GROUP)
        rates[:neurons] = profile
        frequency = np.sort(rates.reshape(groups, GROUP).mean(axis=1))[::-1]
    return FeedForwardParts(gate, -(-rest // groups), frequency, 0)


def _experts(block: MixtureOfExperts, profile: npt.NDArray[np.float64] | None) -> FeedForwardParts:
    stacks = sum(linear.weight.nbytes for linear in (block.gate, block.up, block.down) if linear is not None)
    share = block.top_k / block.experts
    frequency = np.full(block.experts, share) if profile is None else np.sort(profile)[::-1]
    fixed = block.router.weight.nbytes
    if block.shared is not None:
        fixed += sum(linear.weight.nbytes for linear in _linears(block.shared))
    return FeedForwardParts(0, -(-stacks // block.experts), frequency, fixed)


def _linears(block: FeedForward) -> Iterable[Linear]:
    return (linear for linear in (block.gate, block.up, block.down) if linear is not None)


def _attention(attention: Attention | LatentAttention) -> Iterable[int]:
    yield attention.output.weight.nbytes
    if isinstance(attention, LatentAttention):
        query = attention.query
        linears = (query[0], query[2]) if isinstance(query, tuple) else (query,)
        yield from (linear.weight.nbytes for linear in (*linears, attention.key_value_down))
        yield attention.key_up.nbytes
        yield attention.value_up.nbytes
    else:
        yield from (linear.weight.nbytes for linear in (attention.query, attention.key, attention.value))


def _values(attention: Attention | LatentAttention) -> int:
    output = attention.output.weight
    total = output.rows * output.columns
    if isinstance(attention, LatentAttention):
        return 3 * total
    for linear in (attention.query, attention.key, attention.value):
        total += linear.weight.rows * linear.weight.columns
    return total


def _active_values(block: FeedForward | MixtureOfExperts) -> int:
    chosen = block.top_k if isinstance(block, MixtureOfExperts) else 1
    matrices = [linear.weight for linear in (block.gate, block.up, block.down) if linear is not None]
    total = chosen * sum(matrix.rows * matrix.columns for matrix in matrices)
    if isinstance(block, MixtureOfExperts) and block.shared is not None:
        total += sum(linear.weight.rows * linear.weight.columns for linear in _linears(block.shared))
    return total

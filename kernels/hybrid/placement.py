"""What of a model is on the device; the CPU has the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from localllm.kernels.cpu.sparse.codes import codes_of
from localllm.kernels.errors import UnsupportedModelError
from localllm.kernels.spec import FeedForward, MixtureOfExperts

if TYPE_CHECKING:
    from localllm.kernels.executor import Mode
    from localllm.kernels.spec import ModelSpec

GROUP = 32  # neurons: what the blocks of a down matrix can be cut into, unless its blocks are larger


@dataclass(frozen=True, slots=True)
class LayerPlacement:
    """Of a layer's feed-forward block the groups of neurons or experts that are on the device, rising.

    `gate`: the device computes the gates of all neurons, and tells the CPU which of its own fire (ReLU). Without
    `attention` the whole layer is on the CPU.
    """

    units: tuple[int, ...]
    gate: bool = False
    attention: bool = True


@dataclass(frozen=True, slots=True)
class Placement:
    """One entry a layer. Everything else (norms, KV, head, embeddings) is where attention is, or on the device."""

    layers: tuple[LayerPlacement, ...]


def group_size(block: FeedForward) -> int:
    """Neurons of a unit: whole blocks of the down matrix, so that no weight is quantised again."""
    return GROUP if block.down_transposed else max(GROUP, block.down.weight.quant_type.block_size)


def unit_count(block: FeedForward | MixtureOfExperts) -> int:
    """Units of a block: groups of neurons (the last may be smaller), or experts."""
    if isinstance(block, MixtureOfExperts):
        return block.experts
    return -(-block.up.weight.rows // group_size(block))


def gates_first(block: FeedForward | MixtureOfExperts, mode: Mode | None) -> bool:
    """Whether the gate alone says which neurons are read, so that all gates belong on the device."""
    if not isinstance(block, FeedForward) or block.gate is None or mode == "exact" or not block.activation.sparse:
        return False
    able = all(codes_of(linear.weight.quant_type) is not None for linear in (block.up, block.down))
    return able and block.up.weight.rows % group_size(block) == 0


def uniform_placement(spec: ModelSpec, share: float, mode: Mode | None = None) -> Placement:
    """The first `share` of the units of every layer on the device, and all gates where they come first."""
    if not 0 <= share <= 1:
        raise UnsupportedModelError(f"a share of {share} cannot be placed", hint="Use 0 to 1.")
    return Placement(
        tuple(
            LayerPlacement(
                tuple(range(round(share * unit_count(layer.feed_forward)))), gates_first(layer.feed_forward, mode)
            )
            for layer in spec.layers
        )
    )

"""A feed-forward block as two: the neurons or experts on the device, and those on the CPU. No weight changes.

Rows of gate and up are taken whole. Columns of down are taken in whole blocks, as they lie in the file; neighbouring
units, and experts, stay views of the mapped file, other neurons are copied.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from localllm.gguf_io import Tensor
from localllm.kernels.errors import UnsupportedModelError
from localllm.kernels.spec import FeedForward, Linear, MixtureOfExperts

from .placement import group_size, unit_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from localllm.kernels.spec import ModelSpec

    from .placement import LayerPlacement, Placement

    Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class SplitFeedForward:
    """A dense block's halves; None: nothing is there. The bias of down is in `hot`, if there is one.

    `gate`, if given, has the rows of all neurons, those of `hot` first: the device computes it for both.
    `cold_neurons`: which of the block's those of `cold` are.
    """

    block: FeedForward
    hot: FeedForward | None
    cold: FeedForward | None
    cold_neurons: Indices
    gate: Linear | None = None


@dataclass(frozen=True, slots=True, eq=False)
class SplitExperts:
    """A mixture's halves. `places`, per expert: its number in `hot` or, as ~number, in `cold`.

    The cold half may have one place more, behind all others, which is free for an expert that moves.
    """

    block: MixtureOfExperts
    hot: MixtureOfExperts | None
    cold: MixtureOfExperts | None
    places: npt.NDArray[np.int64]

    def table(self, *, hot: bool) -> npt.NDArray[np.int64]:
        """Per expert its number in one half; those of the other half get the number behind the last."""
        numbers = self.places if hot else ~self.places
        half = self.hot if hot else self.cold
        return np.where(numbers >= 0, numbers, 0 if half is None else half.experts)


@dataclass(frozen=True, slots=True, eq=False)
class SomeExperts(Tensor):
    """Matrices `members` of the stack in `data`, in that order and with repetitions; nothing is copied."""

    members: npt.NDArray[np.int64]

    @property
    def nbytes(self) -> int:
        """Bytes of their blocks."""
        return self.data[:1].nbytes * len(self.members)

    def expert(self, index: int) -> Tensor:
        """One of them, as a view."""
        whole = Tensor(self.name, self.quant_type, (len(self.data), *self.shape[1:]), self.data)
        return whole.expert(int(self.members[index]))


Split = SplitFeedForward | SplitExperts
Block = TypeVar("Block", FeedForward, MixtureOfExperts)


def split_model(spec: ModelSpec, placement: Placement, *, spare: bool = False) -> dict[int, Split]:
    """By layer the halves of its feed-forward block, of the layers that are not whole on the device.

    `spare`: cold halves of mixtures get a place for an expert that moves, if there is a hot half to move to.
    """
    if len(placement.layers) != len(spec.layers):
        raise UnsupportedModelError(f"a placement of {len(placement.layers)} layers for {len(spec.layers)}")
    found: dict[int, Split] = {}
    for index, (layer, placed) in enumerate(zip(spec.layers, placement.layers, strict=True)):
        units = unit_count(layer.feed_forward)
        if list(placed.units) != sorted(set(placed.units)) or not set(placed.units) <= set(range(units)):
            raise UnsupportedModelError(f"layer {index} has units 0 to {units - 1}, each at most once and rising")
        if len(placed.units) < units:
            found[index] = _split(layer.feed_forward, placed, spare)
    return found


def _split(block: FeedForward | MixtureOfExperts, placed: LayerPlacement, spare: bool) -> Split:
    hot = np.asarray(placed.units, np.int64)
    cold = np.setdiff1d(np.arange(unit_count(block)), hot)
    if isinstance(block, MixtureOfExperts):
        places = np.empty(block.experts, np.int64)
        places[hot] = np.arange(len(hot))
        places[cold] = ~np.arange(len(cold))
        stack = np.append(cold, cold[-1]) if spare and len(hot) else cold
        mixture, rest_experts = half_of_experts(block, hot), _some(half_of_experts(block, stack))
        if mixture is not None:  # else the CPU has the shared expert too
            rest_experts = replace(rest_experts, shared=None, shared_gate=None)
        return SplitExperts(block, mixture, rest_experts, places)
    group = group_size(block)
    halves = [half_of_neurons(block, units, group) for units in (hot, cold)]
    rest = _some(halves[1])
    bias = block.down.bias if halves[0] is None else None
    rest = replace(rest, down=Linear(rest.down.weight, bias), post_norm=None)
    members = [_members(units, group, block.up.weight.rows) for units in (hot, cold)]
    if not placed.gate or block.gate is None:
        return SplitFeedForward(block, halves[0], rest, members[1])
    return SplitFeedForward(block, halves[0], rest, members[1], _rows(block.gate, np.concatenate(members)))


def without_data(split: Split) -> Split:
    """The same halves without the bytes of their weights, once those are loaded."""
    if isinstance(split, SplitExperts):
        hot, cold = split.hot, split.cold
        return replace(split, hot=_emptied(hot), cold=_emptied(cold))
    gate = None if split.gate is None else _bare(split.gate)
    return replace(split, hot=_emptied(split.hot), cold=_emptied(split.cold), gate=gate)


def _emptied(block: Block | None) -> Block | None:
    if block is None:
        return None
    gate = None if block.gate is None else _bare(block.gate)
    return replace(block, gate=gate, up=_bare(block.up), down=_bare(block.down))


def _bare(linear: Linear) -> Linear:
    return replace(linear, weight=replace(linear.weight, data=linear.weight.data[:0]))


def _some(block: Block | None) -> Block:
    if block is None:
        raise UnsupportedModelError("a layer that is whole on the device has no other half")
    return block


def _members(units: Indices, group: int, count: int) -> Indices:
    """The neurons of units."""
    members = (units[:, None] * group + np.arange(group)).reshape(-1)
    return members[members < count]


def half_of_neurons(block: FeedForward, units: Indices, group: int) -> FeedForward | None:
    """Some groups of a block's neurons as a block; None: no group."""
    if not len(units):
        return None
    members = _members(units, group, block.up.weight.rows)
    weight = block.down.weight
    down = _take(weight, members, -2) if block.down_transposed else _columns(weight, members)
    gate = None if block.gate is None else _rows(block.gate, members)
    return replace(block, gate=gate, up=_rows(block.up, members), down=Linear(down, block.down.bias), predictor=None)


def half_of_experts(block: MixtureOfExperts, units: Indices) -> MixtureOfExperts | None:
    """Some of a mixture's experts as a mixture; None: none."""
    if not len(units):
        return None

    def part(linear: Linear, *, copied: bool = False) -> Linear:
        bias = linear.bias
        weight = _take(linear.weight, units, 0) if copied else _some_of(linear.weight, units)
        return Linear(weight, None if bias is None else _take(bias, units, 0))

    gate = None if block.gate is None else part(block.gate)
    down = part(block.down, copied=block.down_transposed)  # which is turned as one stack
    return replace(block, gate=gate, up=part(block.up), down=down, experts=len(units))


def _some_of(stack: Tensor, units: Indices) -> SomeExperts:
    members = stack.members if isinstance(stack, SomeExperts) else np.arange(stack.shape[0])
    shape = (len(units), *stack.shape[1:])
    return SomeExperts(stack.name, stack.quant_type, shape, stack.data, members[units])


def _rows(linear: Linear, members: Indices) -> Linear:
    bias = linear.bias
    if bias is not None and bias.quant_type.block_size != 1:
        raise UnsupportedModelError(f"the bias {bias.name} is quantised and cannot be divided")
    return Linear(_take(linear.weight, members, -2), None if bias is None else _take(bias, members, -1))


def _take(tensor: Tensor, members: Indices, axis: int) -> Tensor:
    """Entries of an axis that whole runs of bytes belong to; values of a vector for axis -1."""
    shape, data = list(tensor.shape), tensor.data
    shape[axis] = len(members)
    if axis == -1:
        data = data.reshape(*tensor.shape, -1)
    taken = _along(data, members, axis % len(tensor.shape))
    return replace(tensor, shape=tuple(shape), data=taken.reshape(*shape[:-1], -1) if axis == -1 else taken)


def _columns(tensor: Tensor, members: Indices) -> Tensor:
    """Columns of a matrix, in whole blocks."""
    size = tensor.quant_type.block_size
    blocks = members[::size] // size
    shape = (*tensor.shape[:-1], len(members))
    width = tensor.quant_type.type_size
    if _neighbours(blocks):  # rows of a view are still runs of bytes
        data = tensor.data[:, int(blocks[0]) * width : (int(blocks[-1]) + 1) * width]
    else:
        whole = tensor.data.reshape(tensor.rows, -1, width)
        data = np.ascontiguousarray(whole[:, blocks]).reshape(tensor.rows, -1)
    return replace(tensor, shape=shape, data=data)


def _along(data: npt.NDArray[np.uint8], members: Indices, axis: int) -> npt.NDArray[np.uint8]:
    """Entries of an axis: a view of neighbours, else a copy."""
    if _neighbours(members):
        place: Sequence[slice] = [slice(None)] * axis + [slice(int(members[0]), int(members[-1]) + 1)]
        return data[tuple(place)]
    return np.ascontiguousarray(np.take(data, members, axis=axis))


def _neighbours(members: Indices) -> bool:
    return len(members) > 0 and bool((np.diff(members) == 1).all())

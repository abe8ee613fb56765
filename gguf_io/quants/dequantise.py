"""Tensors of any type as float32, or as integers with scales, in pieces so that temporary memory stays small."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..errors import GGUFError
from .layouts import LAYOUTS, Layout
from .plain import PLAIN_TYPES, plain_to_float

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..quant_types import QuantType
    from ..tensor import Tensor
    from .bits import Bytes, Floats, Quants

_VALUES_AT_ONCE = 1 << 16  # the temporaries of a piece stay in the processor's cache


@dataclass(frozen=True, slots=True, eq=False)
class Decomposition:
    """value[..., j] = quants[..., j] * scales[..., j // group_size] (+ minimums[..., j // group_size]).

    `quants` is int8 of the tensor's shape, `scales` and `minimums` are float32 (..., columns / group_size); `minimums`
    is None where the type has none. Computed in float32 as written, product first, this is `dequantize` bit for bit.
    The product is exact (no rounding) for every type, so a fused multiply-add gives the same bits; only the sum with
    a minimum rounds, once. Scales that are infinite, NaN or that overflow float32 in the product (a broken file)
    are the exception: the same operations still give the same bits.
    """

    quants: Quants
    scales: Floats
    minimums: Floats | None
    group_size: int


def dequantize(tensor: Tensor) -> Floats:
    """The tensor as float32 of its shape: a fresh array, bit-equal to the reference of each format.

    Raises GGUFError for a type that `is_supported` denies.
    """
    values = np.empty(tensor.data.size // tensor.quant_type.type_size * tensor.quant_type.block_size, np.float32)
    if tensor.quant_type in PLAIN_TYPES:
        plain_to_float(tensor.quant_type, np.ascontiguousarray(tensor.data).reshape(-1), values)
        return values.reshape(tensor.shape)
    layout = _layout(tensor.quant_type, tensor.name)
    by_block = values.reshape(-1, tensor.quant_type.block_size)
    with np.errstate(over="ignore", invalid="ignore"):  # broken scales give inf and NaN, as they do in the reference
        for start, stop, blocks in _pieces(tensor):
            quants, scales, minimums = layout.unpack(blocks)
            piece = by_block[start:stop].reshape(-1, layout.group_size)
            np.multiply(quants.reshape(piece.shape), scales.reshape(-1, 1), out=piece)
            if minimums is not None:
                piece += minimums.reshape(-1, 1)
    return values.reshape(tensor.shape)


def decompose(tensor: Tensor) -> Decomposition:
    """The tensor as integers, scales and minimums, for kernels that repack it without loss.

    Raises GGUFError for a type that is not made of blocks (`has_decomposition` tells).
    """
    layout = _layout(tensor.quant_type, tensor.name)
    block_size, group_size = tensor.quant_type.block_size, layout.group_size
    block_count = tensor.data.size // tensor.quant_type.type_size
    quants = np.empty((block_count, block_size), np.int8)
    scales = np.empty((block_count, block_size // group_size), np.float32)
    minimums = np.empty_like(scales) if layout.has_minimums else None
    with np.errstate(over="ignore", invalid="ignore"):
        for start, stop, blocks in _pieces(tensor):
            quants[start:stop], scales[start:stop], some = layout.unpack(blocks)
            if minimums is not None and some is not None:
                minimums[start:stop] = some
    grouped = (*tensor.shape[:-1], tensor.columns // group_size)
    return Decomposition(
        quants.reshape(tensor.shape),
        scales.reshape(grouped),
        None if minimums is None else minimums.reshape(grouped),
        group_size,
    )


def has_decomposition(quant_type: QuantType) -> bool:
    """Whether `decompose` works for tensors of this type: all types of blocks, no plain numbers."""
    return quant_type in LAYOUTS


def is_supported(quant_type: QuantType) -> bool:
    """Whether `dequantize` knows this type. Q8_1 and Q8_K exist in computations only, Q1_0 has no reference yet."""
    return quant_type in LAYOUTS or quant_type in PLAIN_TYPES


def _layout(quant_type: QuantType, name: str) -> Layout:
    layout = LAYOUTS.get(quant_type)
    if layout is None:
        raise GGUFError(f"tensor {name}: {quant_type.name} has no block layout to take apart")
    return layout


def _pieces(tensor: Tensor) -> Iterator[tuple[int, int, Bytes]]:
    blocks = np.ascontiguousarray(tensor.data).reshape(-1, tensor.quant_type.type_size)
    step = _VALUES_AT_ONCE // tensor.quant_type.block_size
    for start in range(0, len(blocks), step):
        stop = min(start + step, len(blocks))
        yield start, stop, blocks[start:stop]

"""Float32 to blocks, for tests, requantised files and random models: a good fit in one pass, no search by importance.

Layouts as in `legacy.py` and `k_quants.py`. A symmetric type maps the value of largest magnitude to the end of the
range that has one more step; the types with minimums map smallest and largest to the ends. For K-quants the 6 or 8-bit
sub-scales are rounded first and the integers chosen for the rounded ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from ..errors import GGUFError
from ..quant_types import QuantType

if TYPE_CHECKING:
    from .bits import Bytes, Floats, Integers

_VALUES_AT_ONCE = 1 << 18
_LARGEST_HALF = np.float32(65504)


def quantize(values: Floats, quant_type: QuantType) -> Bytes:
    """Values float32 [..., columns] as blocks uint8 [..., bytes of a row].

    Types: F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q6_K. Raises GGUFError for another type, a row that is no
    whole number of blocks, and values that are not finite or too large for the type's f16 scale.
    """
    encode = _ENCODERS.get(quant_type)
    if encode is None:
        raise GGUFError(f"{quant_type.name} cannot be written (only {', '.join(known.name for known in _ENCODERS)})")
    if values.ndim == 0 or values.shape[-1] % quant_type.block_size:
        raise GGUFError(f"the shape {values.shape} is no whole number of {quant_type.name} blocks")
    blocks = np.ascontiguousarray(values, np.float32).reshape(-1, quant_type.block_size)
    packed = np.empty((len(blocks), quant_type.type_size), np.uint8)
    step = _VALUES_AT_ONCE // quant_type.block_size
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused when its scale is stored
        for start in range(0, len(blocks), step):
            packed[start : start + step] = encode(blocks[start : start + step])
    return packed.reshape(*values.shape[:-1], -1)


def _float32(blocks: Floats) -> Bytes:
    return blocks.astype("<f4").view(np.uint8)


def _half(values: Floats) -> Bytes:
    """Float16 bytes; what would become infinite is an error."""
    if not np.all(np.abs(values) <= _LARGEST_HALF):
        raise GGUFError("the values (or the scale of a block) are not finite or do not fit into a float16")
    return values.astype("<f2").view(np.uint8)


def _brain_float(blocks: Floats) -> Bytes:
    """The upper half of each float32, rounded to nearest even."""
    if not np.isfinite(blocks).all():
        raise GGUFError("the values are not finite")
    bits = blocks.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").view(np.uint8)


def _stored_half(scales: Floats) -> tuple[Bytes, Floats]:
    """A column of scales as f16 bytes, and the values that a reader gets back."""
    packed = _half(scales)
    return packed, packed.view("<f2").astype(np.float32)


def _inverse(scales: Floats) -> Floats:
    return np.divide(np.float32(1), scales, out=np.zeros_like(scales), where=scales != 0)


def _integers(values: Floats, scales: Floats, low: int, high: int) -> Integers:
    """The nearest integers in [low, high] for values [n, k] and scales [n, 1]; 0 where the scale is 0."""
    codes: Integers = np.clip(np.rint(values * _inverse(scales)), low, high).astype(np.int16)
    return codes


def _end_scales(blocks: Floats, steps: int) -> Floats:
    """Scales that put the value of largest magnitude at -steps, the end that has one more step: [n, k] to [n, 1]."""
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=-1, keepdims=True), axis=-1)
    return largest / np.float32(-steps)


def _pack_nibbles(low: Integers, high: Integers) -> Bytes:
    return (low | (high << 4)).astype(np.uint8)


def _pack_flags(flags: Integers) -> Bytes:
    return np.packbits(flags.astype(np.uint8), axis=-1, bitorder="little")


def _symmetric(blocks: Floats, bits: int) -> tuple[Bytes, Integers]:
    half = 1 << (bits - 1)
    packed, scales = _stored_half(_end_scales(blocks, half))
    return packed, _integers(blocks, scales, -half, half - 1) + half


def _affine(blocks: Floats, bits: int) -> tuple[Bytes, Integers]:
    highest = (1 << bits) - 1
    low = blocks.min(axis=-1, keepdims=True)
    packed_low, low = _stored_half(low)
    packed_scale, scales = _stored_half((blocks.max(axis=-1, keepdims=True) - low) / np.float32(highest))
    return np.concatenate((packed_scale, packed_low), axis=1), _integers(blocks - low, scales, 0, highest)


def _q4_0(blocks: Floats) -> Bytes:
    scale, codes = _symmetric(blocks, 4)
    return np.concatenate((scale, _pack_nibbles(codes[:, :16], codes[:, 16:])), axis=1)


def _q4_1(blocks: Floats) -> Bytes:
    scale, codes = _affine(blocks, 4)
    return np.concatenate((scale, _pack_nibbles(codes[:, :16], codes[:, 16:])), axis=1)


def _q5_0(blocks: Floats) -> Bytes:
    scale, codes = _symmetric(blocks, 5)
    return _five_bits(scale, codes)


def _q5_1(blocks: Floats) -> Bytes:
    scale, codes = _affine(blocks, 5)
    return _five_bits(scale, codes)


def _five_bits(scale: Bytes, codes: Integers) -> Bytes:
    low = codes & 15
    return np.concatenate((scale, _pack_flags(codes >> 4), _pack_nibbles(low[:, :16], low[:, 16:])), axis=1)


def _q8_0(blocks: Floats) -> Bytes:
    packed, scales = _stored_half(np.abs(blocks).max(axis=-1, keepdims=True) / np.float32(127))
    return np.concatenate((packed, _integers(blocks, scales, -127, 127).astype(np.int8).view(np.uint8)), axis=1)


def _q4_k(blocks: Floats) -> Bytes:
    groups = blocks.reshape(-1, 8, 32)
    depth = np.maximum(-groups.min(axis=-1), 0)  # how far below zero a group reaches: it is stored without sign
    width = (groups.max(axis=-1) + depth) / np.float32(15)
    packed_width, width_unit = _stored_half(width.max(axis=-1, keepdims=True) / np.float32(63))
    packed_depth, depth_unit = _stored_half(depth.max(axis=-1, keepdims=True) / np.float32(63))
    scales, minimums = _integers(width, width_unit, 0, 63), _integers(depth, depth_unit, 0, 63)
    lifted = groups + (depth_unit * minimums.astype(np.float32))[:, :, None]
    codes = _integers(lifted, (width_unit * scales.astype(np.float32))[:, :, None], 0, 15).reshape(-1, 4, 2, 32)
    sub_scales = np.concatenate(
        (
            scales[:, :4] | ((scales[:, 4:] >> 4) << 6),
            minimums[:, :4] | ((minimums[:, 4:] >> 4) << 6),
            (scales[:, 4:] & 15) | ((minimums[:, 4:] & 15) << 4),
        ),
        axis=1,
    ).astype(np.uint8)
    nibbles = _pack_nibbles(codes[:, :, 0], codes[:, :, 1]).reshape(-1, 128)
    return np.concatenate((packed_width, packed_depth, sub_scales, nibbles), axis=1)


def _q6_k(blocks: Floats) -> Bytes:
    groups = blocks.reshape(-1, 16, 16)
    wanted = _end_scales(groups, 32)[:, :, 0]
    packed, unit = _stored_half(_end_scales(wanted, 128))
    scales = _integers(wanted, unit, -128, 127)
    codes = _integers(groups, (unit * scales.astype(np.float32))[:, :, None], -32, 31).reshape(-1, 2, 4, 32) + 32
    low, high = codes & 15, codes >> 4
    nibbles = _pack_nibbles(low[:, :, :2], low[:, :, 2:]).reshape(-1, 128)
    pairs = (high[:, :, 0] | (high[:, :, 1] << 2) | (high[:, :, 2] << 4) | (high[:, :, 3] << 6)).astype(np.uint8)
    scale_bytes = scales.astype(np.int8).view(np.uint8)
    return np.concatenate((nibbles, pairs.reshape(-1, 64), scale_bytes, packed), axis=1)


_ENCODERS: dict[QuantType, Callable[[Floats], Bytes]] = {
    QuantType.F32: _float32,
    QuantType.F16: _half,
    QuantType.BF16: _brain_float,
    QuantType.Q4_0: _q4_0,
    QuantType.Q4_1: _q4_1,
    QuantType.Q5_0: _q5_0,
    QuantType.Q5_1: _q5_1,
    QuantType.Q8_0: _q8_0,
    QuantType.Q4_K: _q4_k,
    QuantType.Q6_K: _q6_k,
}

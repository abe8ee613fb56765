"""How a sealed page of a quantised KV cache stores numbers: keys per channel, values per token, both asymmetric.

As in KIVI (https://arxiv.org/abs/2402.02750), with groups no larger than a page. A page and head of keys is
[channels][16 tokens]: each channel has its own zero, two neighbouring channels (which rope turns into each other, so
that they have the same size) share a step, written as 4 bits below the largest step of the page. A token's values have
a step and a zero for every group of 64 channels. All of this costs 0.45 bits a number for heads of 64.

A stored number is step * (code + unit * zero); a step is never smaller than what its range and its zero need.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from .kv_layout import KVType

    Floats = npt.NDArray[np.float32]
    Bytes = npt.NDArray[np.uint8]

VALUE_GROUP = 64  # channels of a token's value that share a step; a shorter rest belongs to the last group
STEPS_PER_OCTAVE = 4  # of the key steps below the largest
_LARGEST_STEP_CODE = 15
_ONE = 0x3F800000  # float32 1.0
_LARGEST_ZERO = 127
_LARGEST_HALF = 65504.0
_LARGEST_SMALL = 0xF7  # the largest finite value of 5 exponent and 3 mantissa bits


@dataclass(frozen=True, slots=True)
class Quantisation:
    """Codes of `bits` bits. `key_unit` and `value_unit`: how many steps one unit of a zero is."""

    bits: int
    key_unit: float
    value_unit: float

    @property
    def largest(self) -> int:
        """The largest code."""
        return (1 << self.bits) - 1


QUANTISATIONS: dict[KVType, Quantisation] = {
    "q8": Quantisation(8, 16.0, 4.0),
    "q4": Quantisation(4, 1.0, 0.25),
    "q2": Quantisation(2, 0.25, 0.0625),
}


@dataclass(frozen=True, slots=True, eq=False)
class QuantisedKeys:
    """Keys of pages: `codes` [..., channels, 16], `zeros` int8 [..., channels], `steps` [..., channels / 2] (0 to 15),
    `base` float16 [..., 1]: the largest step."""

    codes: Bytes
    zeros: npt.NDArray[np.int8]
    steps: Bytes
    base: npt.NDArray[np.float16]


@dataclass(frozen=True, slots=True, eq=False)
class QuantisedValues:
    """Values of pages: `codes` [..., 16, channels], `zeros` int8 and `steps` [..., groups, 16]."""

    codes: Bytes
    zeros: npt.NDArray[np.int8]
    steps: Bytes


def value_groups(channels: int) -> list[slice]:
    """The channels that share a step."""
    count = max(1, channels // VALUE_GROUP)
    return [slice(i * VALUE_GROUP, channels if i == count - 1 else (i + 1) * VALUE_GROUP) for i in range(count)]


def key_steps(base: npt.NDArray[np.float16], steps: Bytes) -> Floats:
    """The step of every channel [..., channels]; between octaves the ladder is linear, as the bits of a float are."""
    bits = _ONE - steps.astype(np.int32) * ((1 << 23) // STEPS_PER_OCTAVE)
    result: Floats = np.repeat(base.astype(np.float32) * bits.view(np.float32), 2, axis=-1)
    return result


def value_steps(steps: Bytes) -> Floats:
    """Float16 numbers without sign and without the 7 low bits."""
    return (steps.astype(np.uint16) << 7).view(np.float16).astype(np.float32)


def quantise_keys(keys: Floats, kind: Quantisation) -> QuantisedKeys:
    """Finite float32 keys [..., channels, 16], an even number of channels."""
    by_token = np.ascontiguousarray(np.moveaxis(keys, -1, 0))  # numpy is slow along a short last axis
    low, high = by_token.min(axis=0), by_token.max(axis=0)
    needed = _needed(low, high, kind, kind.key_unit)
    pairs: Floats = np.maximum(needed[..., 0::2], needed[..., 1::2])
    base = _half_above(pairs.max(axis=-1, keepdims=True))
    wide = base.astype(np.float32)
    share = np.divide(pairs, wide, out=np.ones_like(pairs), where=wide > 0)
    steps = (_ONE - share.view(np.int32)) // ((1 << 23) // STEPS_PER_OCTAVE)
    step_codes: Bytes = np.clip(steps, 0, _LARGEST_STEP_CODE).astype(np.uint8)
    step = key_steps(base, step_codes)
    codes, zeros = _encode(keys, step[..., None], low[..., None], kind, kind.key_unit)
    return QuantisedKeys(codes, zeros[..., 0], step_codes, base)


def quantise_values(values: Floats, kind: Quantisation) -> QuantisedValues:
    """Finite float32 values [..., 16, channels]."""
    codes = np.empty(values.shape, np.uint8)
    groups = value_groups(values.shape[-1])
    zeros = np.empty((*values.shape[:-2], len(groups), values.shape[-2]), np.int8)
    steps = np.empty(zeros.shape, np.uint8)
    for index, group in enumerate(groups):
        part = values[..., group]
        low, high = part.min(axis=-1), part.max(axis=-1)
        half = _half_above(_needed(low, high, kind, kind.value_unit)).view(np.uint16)
        steps[..., index, :] = np.minimum((half + 127) >> 7, _LARGEST_SMALL)
        step = value_steps(steps[..., index, :])
        codes[..., group], own = _encode(part, step[..., None], low[..., None], kind, kind.value_unit)
        zeros[..., index, :] = own[..., 0]
    return QuantisedValues(codes, zeros, steps)


def dequantise_keys(stored: QuantisedKeys, kind: Quantisation) -> Floats:
    """float32 [..., channels, 16]."""
    step = key_steps(stored.base, stored.steps)[..., None]
    zeros = stored.zeros[..., None].astype(np.float32) * np.float32(kind.key_unit)
    result: Floats = step * (stored.codes.astype(np.float32) + zeros)
    return result


def dequantise_values(stored: QuantisedValues, kind: Quantisation) -> Floats:
    """float32 [..., 16, channels]."""
    result = stored.codes.astype(np.float32)
    steps, zeros = value_steps(stored.steps), stored.zeros.astype(np.float32) * np.float32(kind.value_unit)
    for index, group in enumerate(value_groups(result.shape[-1])):
        result[..., group] = steps[..., index, :, None] * (result[..., group] + zeros[..., index, :, None])
    return result


def _needed(low: Floats, high: Floats, kind: Quantisation, unit: float) -> Floats:
    """The smallest step: its codes reach from the zero at or below `low` to `high`, and the zero can be written."""
    by_range = (high - low) / np.float32(kind.largest - unit)
    result: Floats = np.maximum(by_range, np.abs(low) / np.float32(_LARGEST_ZERO * unit))
    return result


def _half_above(values: Floats) -> npt.NDArray[np.float16]:
    """The float16 at or above each value >= 0, finite."""
    half = np.minimum(values, _LARGEST_HALF).astype(np.float16)
    above = np.nextafter(half, np.float16(np.inf))
    result: npt.NDArray[np.float16] = np.minimum(np.where(half < values, above, half), np.float16(_LARGEST_HALF))
    return result


def _encode(
    values: Floats, step: Floats, low: Floats, kind: Quantisation, unit: float
) -> tuple[Bytes, npt.NDArray[np.int8]]:
    inverse = np.divide(np.float32(1), step, out=np.zeros_like(step), where=step > 0)
    zeros = np.clip(np.floor(low * inverse / np.float32(unit)), -128, _LARGEST_ZERO).astype(np.int8)
    scaled = values * inverse
    scaled -= zeros.astype(np.float32) * np.float32(unit)
    np.rint(scaled, out=scaled)
    np.clip(scaled, 0, kind.largest, out=scaled)
    return scaled.astype(np.uint8), zeros

"""Pages of small integers, as `kernels/kv_quantise.py` makes them, and how attention kernels read them.

A page has for each KV head keys and values, and behind those of all heads the base steps:

    keys    [channels / 2P][16 tokens][2] bytes, P = 8 / bits codes in a byte, the first lowest: byte i of vector v has
            the codes of channels 2 (vP + f) + i, f = 0 ... P - 1; zeros [channels] int8; steps, 4 bits for a pair
    values  [16 tokens / 2P][channels][2] bytes, the codes of tokens in the same way;
            steps [groups][16]; zeros [groups][16] int8
    base    float16 for each head

Kernels never make floats of a stored number. score = sum over channels of (q * step) * code, plus one number for the
zeros of the whole page; q * step is rounded to 16 bits (of the largest possible one), so the sum is one of integers. In
the same way a weight is multiplied by the step of its value and rounded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from localllm.kernels.kv_quantise import (
    QUANTISATIONS,
    STEPS_PER_OCTAVE,
    Quantisation,
    quantise_keys,
    quantise_values,
    value_groups,
)

from .ir_types import F32, F32X16, I8, I16, I32, I32X16, Value, vector
from .page_types import HALF_PAGES, LANES, PageShape, padded
from .pair_dot import largest_of, multiplier_limit, round_to_pairs
from .vector_math import half_to_float

if TYPE_CHECKING:
    import numpy.typing as npt

    from localllm.kernels.kv_layout import KVType

    from .emit import Emitter

    Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class QuantisedPages:
    """The storage type of sealed pages of one cache type."""

    name: KVType

    @property
    def quantisation(self) -> Quantisation:
        """How numbers become codes."""
        return QUANTISATIONS[self.name]

    @property
    def packed(self) -> int:
        """Codes in a byte."""
        return 8 // self.quantisation.bits

    def key_bytes(self, key_dim: int) -> int:
        """Codes, zeros and steps of one head's keys."""
        width = padded(key_dim)
        return width * LANES // self.packed + width + width // 4

    def value_bytes(self, value_dim: int) -> int:
        """Codes, steps and zeros of one head's values."""
        return padded(value_dim) * LANES // self.packed + 2 * LANES * len(value_groups(value_dim))

    def extra_bytes(self, heads: int) -> int:
        """The base steps of all heads."""
        return padded(2 * heads)

    # Reading, inside kernels

    def store_factors(self, e: Emitter, keys: Value, key_dim: int, target: Value) -> None:
        """The steps of a page's channels relative to its base, then their zeros, as floats: 2 * padded(key_dim)."""
        width = padded(key_dim)
        zeros = e.at(keys, width * LANES // self.packed)
        steps = e.at(zeros, width)
        shifts = e.constant(I32X16, [4 * (lane // 2) for lane in range(LANES)])

        def channels(channel: Value, _: list[Value]) -> None:
            nibbles = e.load_splat(I32, LANES, steps, e.div(channel, 4))
            code = e.bit_and(e.shift_right(nibbles, shifts), 15)
            below = e.shift_left(code, 23 - (STEPS_PER_OCTAVE.bit_length() - 1))
            share = e.bitcast(e.sub(e.constant(I32X16, 0x3F800000), below), F32X16)
            e.store(share, target, e.mul(channel, 4))
            zero = e.convert(e.convert(e.load(vector(I8, LANES), zeros, channel), I32), F32)
            e.store(zero, target, e.mul(channel, 4), 4 * width)

        e.loop(width, [], channels, step=LANES)

    def base_step(self, e: Emitter, base: Value) -> Value:
        """The largest step of a page's keys, a float."""
        return e.lane(half_to_float(e, e.load(vector(I16, 1), base)), 0)

    def key_multipliers(self, e: Emitter, query: Value, key_dim: int, target: Value) -> Value:
        """A query so that its largest value is the largest multiplier, to `target`; returns the unit of these."""
        width = padded(key_dim)

        def look(channel: Value, largest: list[Value]) -> list[Value]:
            return [e.max(largest[0], e.abs(e.load(F32X16, query, e.mul(channel, 4))))]

        zero = e.constant(F32X16, 0.0)
        largest = largest_of(e, e.loop(width, [zero], look, step=LANES)[0])
        limit = float(multiplier_limit(self.quantisation.largest, width))
        factor = e.splat(e.div(limit, largest), LANES)

        def scale(channel: Value, _: list[Value]) -> None:
            offset = e.mul(channel, 4)
            e.store(e.mul(e.load(F32X16, query, offset), factor), target, offset)

        e.loop(width, [], scale, step=LANES)
        return e.mul(largest, 1.0 / limit)

    def scale_query(self, e: Emitter, multipliers: Value, factors: Value, key_dim: int, target: Value) -> Value:
        """multiplier * relative step for every channel to `target`, int16; returns what the zeros add to each sum."""
        width = padded(key_dim)

        def channels(channel: Value, total: list[Value]) -> list[Value]:
            offset = e.mul(channel, 4)
            scaled = e.mul(e.load(F32X16, multipliers, offset), e.load(F32X16, factors, offset))
            integers, rounded = round_to_pairs(e, scaled)
            e.store(integers, target, e.mul(channel, 2))
            return [e.fma(rounded, e.load(F32X16, factors, offset, 4 * width), total[0])]

        total = e.loop(width, [e.constant(F32X16, 0.0)], channels, step=LANES)[0]
        return e.mul(e.horizontal_sum(total), self.quantisation.key_unit)

    def key_vectors(self, key_dim: int) -> int:
        """Vectors of codes that a head's keys are."""
        return padded(key_dim) // (2 * self.packed)

    def load_keys(self, e: Emitter, keys: Value, number: Value) -> list[Value]:
        """Vector `number` of a page: int16 [16 keys][2], once for each two neighbouring channels."""
        return self._unpack(e, e.at(keys, e.mul(number, 2 * LANES)))

    def value_factors(self, e: Emitter, values: Value, value_dim: int, group: int) -> tuple[Value, Value]:
        """Steps and zeros of the 16 tokens for one group of channels."""
        address = e.at(values, padded(value_dim) * LANES // self.packed)
        steps = e.convert(e.load(vector(I8, LANES), address, group * LANES), I16, signed=False)
        place = (len(value_groups(value_dim)) + group) * LANES
        zeros = e.convert(e.convert(e.load(vector(I8, LANES), address, place), I32), F32)
        return half_to_float(e, e.shift_left(steps, 7)), zeros

    @property
    def value_vectors(self) -> int:
        """Vectors of codes that 16 channels of a page's values are."""
        return LANES // (2 * self.packed)

    def load_values(
        self, e: Emitter, values: Value, value_dim: int, number: Value, channel: Value | int
    ) -> list[Value]:
        """Vector `number` of 16 channels: int16 [16 channels][2], once for each two neighbouring tokens."""
        row = e.mul(number, 2 * padded(value_dim))
        return self._unpack(e, e.at(values, row, e.mul(e.integer(channel), 2)))

    def _unpack(self, e: Emitter, address: Value) -> list[Value]:
        bits = self.quantisation.bits
        wide = e.convert(e.load(vector(I8, 2 * LANES), address), I16, signed=False)
        codes = []
        for place in range(self.packed):
            code = e.shift_right(wide, bits * place) if place else wide
            codes.append(code if place == self.packed - 1 else e.bit_and(code, (1 << bits) - 1))
        return codes

    # Writing, on the host

    def seal(self, shape: PageShape, pages: Bytes) -> Bytes:
        """Float16 pages [..., bytes] of the same heads as pages of this type."""
        recent = recent_shape(shape)
        lead, heads = pages.shape[:-1], shape.heads
        halves = pages.view(np.float16)
        split = recent.heads * recent.key_head_bytes // 2
        keys = halves[..., :split].reshape(*lead, heads, padded(shape.key_dim), LANES).astype(np.float32)
        values = halves[..., split:].reshape(*lead, heads, LANES, padded(shape.value_dim)).astype(np.float32)
        quantised_keys = quantise_keys(keys, self.quantisation)
        quantised_values = quantise_values(values[..., : shape.value_dim], self.quantisation)
        value_codes = np.zeros(values.shape, np.uint8)
        value_codes[..., : shape.value_dim] = quantised_values.codes
        step_bytes = quantised_keys.steps[..., 0::2] | quantised_keys.steps[..., 1::2] << 4
        key_parts = (
            self._pack(quantised_keys.codes),
            quantised_keys.zeros.view(np.uint8),
            step_bytes,
        )
        value_parts = (self._pack(value_codes), quantised_values.steps, quantised_values.zeros.view(np.uint8))
        result = np.zeros((*lead, shape.page_bytes), np.uint8)
        start = 0
        for parts, size in ((key_parts, shape.key_head_bytes), (value_parts, shape.value_head_bytes)):
            flat = [part.reshape(*lead, heads, -1) for part in parts]
            result[..., start : start + heads * size] = np.concatenate(flat, axis=-1).reshape(*lead, -1)
            start += heads * size
        bases = np.ascontiguousarray(quantised_keys.base.reshape(*lead, heads)).view(np.uint8)
        result[..., start : start + 2 * heads] = bases
        return result

    def _pack(self, codes: Bytes) -> Bytes:
        """Codes [..., n, lanes] of which n are summed over, to bytes [..., n / 2P, lanes, 2]."""
        packed, bits = self.packed, self.quantisation.bits
        fields = codes.reshape(*codes.shape[:-2], -1, packed, 2, codes.shape[-1])
        result: Bytes = fields[..., 0, :, :].copy()
        for place in range(1, packed):
            result |= fields[..., place, :, :] << (bits * place)
        return result.swapaxes(-1, -2)


def recent_shape(shape: PageShape) -> PageShape:
    """The pages that rows of such a layer are written to: the same ones, or float16 beside quantised ones."""
    if isinstance(shape.page_type, QuantisedPages):
        return PageShape(HALF_PAGES, shape.heads, shape.key_dim, shape.value_dim)
    return shape

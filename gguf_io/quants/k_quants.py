"""Super-blocks of 256 values with packed sub-scales: Q2_K to Q6_K.

A sub-scale is the block's f16 scale times a small integer: the product is exact in float32, so it is handed out as the
scale of its group of 16 or 32 values.
Source: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h (layouts of the blocks)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .bits import fields, half_to_float

if TYPE_CHECKING:
    from .bits import Bytes, Quants, Unpacked


def unpack_q2_k(blocks: Bytes) -> Unpacked:
    """16 bytes of scale (low nibble) and minimum (high), 64 bytes of 2-bit quants, two f16; groups of 16."""
    count = len(blocks)
    scale, minimum = half_to_float(blocks[:, 80:82]), half_to_float(blocks[:, 82:84])
    quants = fields(blocks[:, 16:80].reshape(2 * count, 32), 2).reshape(count, 256)
    return quants.view(np.int8), scale * (blocks[:, :16] & 15), -(minimum * (blocks[:, :16] >> 4))


def unpack_q3_k(blocks: Bytes) -> Unpacked:
    """32 bytes of third bits, 64 bytes of 2-bit quants, 12 bytes of 6-bit scales, f16; groups of 16."""
    count = len(blocks)
    low = fields(blocks[:, 32:96].reshape(2 * count, 32), 2).reshape(count, 256)
    high = fields(blocks[:, :32], 1).reshape(count, 256)
    quants = (low | (high << 2)).view(np.int8) - np.int8(4)  # a set third bit means: 4 is not taken off
    return quants, half_to_float(blocks[:, 108:110]) * scales_of_q3_k(blocks[:, 96:108]), None


def scales_of_q3_k(packed: Bytes) -> Quants:
    """Sixteen signed 6-bit scales from 12 bytes: uint8 [n, 12] to int8 [n, 16]."""
    count = len(packed)
    scales = fields(packed[:, :8], 4).reshape(count, 16) | (fields(packed[:, 8:], 2).reshape(count, 16) << 4)
    return scales.view(np.int8) - np.int8(32)


def scales_and_minimums(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Eight 6-bit scales and eight 6-bit minimums from 12 bytes (Q4_K and Q5_K): uint8 [n, 12] to twice [n, 8].

    Bytes 0-3 and 4-7 hold the first four of each in their low six bits; bytes 8-11 hold the low nibbles of the last
    four, whose upper two bits are the top two bits of bytes 0-7.
    """
    low_scales, low_minimums, rest = packed[:, :4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate((low_scales & 63, (rest & 15) | ((low_scales >> 6) << 4)), axis=1)
    minimums = np.concatenate((low_minimums & 63, (rest >> 4) | ((low_minimums >> 6) << 4)), axis=1)
    return scales, minimums


def unpack_q4_k(blocks: Bytes) -> Unpacked:
    """Two f16, 12 bytes of scales and minimums, 128 bytes of nibbles; groups of 32."""
    count = len(blocks)
    scales, minimums = scales_and_minimums(blocks[:, 4:16])
    quants = fields(blocks[:, 16:].reshape(4 * count, 32), 4).reshape(count, 256)
    return quants.view(np.int8), half_to_float(blocks[:, :2]) * scales, -(half_to_float(blocks[:, 2:4]) * minimums)


def unpack_q5_k(blocks: Bytes) -> Unpacked:
    """Two f16, 12 bytes of scales and minimums, 32 bytes of fifth bits, 128 bytes of nibbles; groups of 32."""
    count = len(blocks)
    scales, minimums = scales_and_minimums(blocks[:, 4:16])
    low = fields(blocks[:, 48:].reshape(4 * count, 32), 4).reshape(count, 256)
    quants = low | (fields(blocks[:, 16:48], 1).reshape(count, 256) << 4)
    return quants.view(np.int8), half_to_float(blocks[:, :2]) * scales, -(half_to_float(blocks[:, 2:4]) * minimums)


def unpack_q6_k(blocks: Bytes) -> Unpacked:
    """128 bytes of nibbles, 64 bytes of upper 2 bits, 16 signed scales, f16; groups of 16; quants offset by 32."""
    count = len(blocks)
    low = fields(blocks[:, :128].reshape(2 * count, 64), 4).reshape(count, 256)
    high = fields(blocks[:, 128:192].reshape(2 * count, 32), 2).reshape(count, 256)
    scales = half_to_float(blocks[:, 208:210]) * blocks[:, 192:208].view(np.int8)
    return (low | (high << 4)).view(np.int8) - np.int8(32), scales, None

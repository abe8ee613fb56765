"""Blocks of 32 values with one scale, and a minimum in the _1 types: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0.

Quants are stored halves apart: low nibbles are the first 16 values, high nibbles the last 16.
Source: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h (layouts of the blocks)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .bits import bit_flags, fields, half_to_float

if TYPE_CHECKING:
    from .bits import Bytes, Quants, Unpacked


def _nibbles(data: Bytes) -> Quants:
    return fields(data, 4).reshape(len(data), -1).view(np.int8)


def unpack_q4_0(blocks: Bytes) -> Unpacked:
    """Scale f16, 16 bytes of nibbles; quants are offset by 8."""
    return _nibbles(blocks[:, 2:]) - np.int8(8), half_to_float(blocks[:, :2]), None


def unpack_q4_1(blocks: Bytes) -> Unpacked:
    """Scale f16, minimum f16, 16 bytes of nibbles."""
    return _nibbles(blocks[:, 4:]), half_to_float(blocks[:, :2]), half_to_float(blocks[:, 2:4])


def unpack_q5_0(blocks: Bytes) -> Unpacked:
    """Scale f16, 4 bytes of fifth bits, 16 bytes of nibbles; quants are offset by 16."""
    quants = _nibbles(blocks[:, 6:]) | (bit_flags(blocks[:, 2:6]) << 4).view(np.int8)
    return quants - np.int8(16), half_to_float(blocks[:, :2]), None


def unpack_q5_1(blocks: Bytes) -> Unpacked:
    """Scale f16, minimum f16, 4 bytes of fifth bits, 16 bytes of nibbles."""
    quants = _nibbles(blocks[:, 8:]) | (bit_flags(blocks[:, 4:8]) << 4).view(np.int8)
    return quants, half_to_float(blocks[:, :2]), half_to_float(blocks[:, 2:4])


def unpack_q8_0(blocks: Bytes) -> Unpacked:
    """Scale f16, 32 signed bytes."""
    return blocks[:, 2:].view(np.int8), half_to_float(blocks[:, :2]), None

"""Four-bit codes into a table of 16 integers: IQ4_NL, IQ4_XS, and the microscaling types MXFP4 and NVFP4.

The tables: IQ4's non-linear levels; for the FP4 types twice the E2M1 values, so that they are integers (the scale is
halved in return). Sources: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h (layouts);
OCP Microscaling Formats v1.0 (E2M1, E8M0); OCP 8-bit floating point v1.0 (E4M3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .bits import fields, half_to_float

if TYPE_CHECKING:
    from .bits import Bytes, Floats, Quants, Unpacked

IQ4_LEVELS = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)
FP4_LEVELS = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)


def _look_up(levels: Quants, packed: Bytes, half_block: int) -> Quants:
    """Codes of bytes [n, k], low nibbles of `half_block` bytes before their high ones, as levels [n, 2 k]."""
    return np.take(levels, fields(packed.reshape(-1, half_block), 4)).reshape(len(packed), -1)


def unpack_iq4_nl(blocks: Bytes) -> Unpacked:
    """Scale f16, 16 bytes of codes."""
    return _look_up(IQ4_LEVELS, blocks[:, 2:], 16), half_to_float(blocks[:, :2]), None


def unpack_iq4_xs(blocks: Bytes) -> Unpacked:
    """Scale f16, eight 6-bit sub-scales (2 bytes of upper bits, 4 of lower), 128 bytes of codes; groups of 32."""
    scales = half_to_float(blocks[:, :2]) * scales_of_iq4_xs(blocks[:, 2:8])
    return _look_up(IQ4_LEVELS, blocks[:, 8:], 16), scales, None


def scales_of_iq4_xs(packed: Bytes) -> Quants:
    """Eight signed 6-bit scales from 2 bytes of upper bits and 4 of lower ones: uint8 [n, 6] to int8 [n, 8]."""
    low = np.stack((packed[:, 2:] & 15, packed[:, 2:] >> 4), axis=-1).reshape(len(packed), 8)
    upper = np.ascontiguousarray(packed[:, :2]).view("<u2") >> np.arange(0, 16, 2, dtype=np.uint16)
    scales: Quants = (low | ((upper & 3).astype(np.uint8) << 4)).view(np.int8) - np.int8(32)
    return scales


def unpack_mxfp4(blocks: Bytes) -> Unpacked:
    """One power-of-two exponent byte, 16 bytes of codes."""
    return _look_up(FP4_LEVELS, blocks[:, 1:], 16), _half_powers_of_two(blocks[:, :1]), None


def unpack_nvfp4(blocks: Bytes) -> Unpacked:
    """Four E4M3 scales without sign, 32 bytes of codes; groups of 16."""
    return _look_up(FP4_LEVELS, blocks[:, 4:], 8), _half_e4m3(blocks[:, :4]), None


def _half_powers_of_two(exponents: Bytes) -> Floats:
    """2 ** (exponent - 128), exact down to the subnormal numbers of exponents 0 and 1."""
    normal = (np.maximum(exponents.astype(np.uint32), 2) - 1) << 23
    subnormal = np.uint32(0x00200000) << np.minimum(exponents, 1).astype(np.uint32)
    return np.where(exponents < 2, subnormal, normal).astype(np.uint32).view(np.float32)


def _half_e4m3(codes: Bytes) -> Floats:
    """Half the value of an E4M3 number (bias 7) without its sign; 0x7F, the format's NaN, is read as 0."""
    exponents, fractions = (codes >> 3) & 15, (codes & 7).astype(np.float32)
    magnitudes = np.where(exponents == 0, fractions, fractions + np.float32(8))
    scales = np.ldexp(magnitudes, np.maximum(exponents, 1).astype(np.int32) - 11)
    return np.where(codes == 0x7F, np.float32(0), scales).astype(np.float32)

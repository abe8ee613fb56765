"""Importance-aware 2 and 3 bit types: code book vectors of magnitudes, sign flags and 4-bit sub-scales.

A sub-scale is d * (s + 1/2) / 4 or alike; the signed magnitudes are the integers, and scale * integer is exact.
Source: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h (layouts of the blocks)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .bits import bit_flags, half_to_float, signed
from .grids import Grid, look_up

if TYPE_CHECKING:
    from .bits import Bytes, Floats, Integers, Quants, Unpacked


def unpack_iq2_xxs(blocks: Bytes) -> Unpacked:
    """f16, then per group of 32: four code bytes, and a word of four 7-bit sign sets and a 4-bit sub-scale."""
    words = np.ascontiguousarray(blocks[:, 2:]).view("<u4").reshape(len(blocks), 8, 2)
    codes = np.ascontiguousarray(words[:, :, 0]).view(np.uint8)
    quants = _signed_vectors(Grid.IQ2_XXS, codes, _packed_signs(words[:, :, 1]))
    return quants, _sub_scales(blocks[:, :2], words[:, :, 1] >> 28, 0.25), None


def unpack_iq2_xs(blocks: Bytes) -> Unpacked:
    """f16, 32 words of a 9-bit code and a 7-bit sign set, 8 bytes of sub-scales; groups of 16."""
    words = np.ascontiguousarray(blocks[:, 2:66]).view("<u2")
    quants = _signed_vectors(Grid.IQ2_XS, words & 511, _complete_signs(words >> 9))
    return quants, _sub_scales(blocks[:, :2], _nibbles_in_order(blocks[:, 66:74]), 0.25), None


def unpack_iq2_s(blocks: Bytes) -> Unpacked:
    """f16, 32 code bytes, 32 bytes of signs, 8 bytes of upper code bits, 8 bytes of sub-scales; groups of 16."""
    codes = blocks[:, 2:34] | (_pairs_in_order(blocks[:, 66:74]).astype(np.uint16) << 8)
    quants = _signed_vectors(Grid.IQ2_S, codes, bit_flags(blocks[:, 34:66]))
    return quants, _sub_scales(blocks[:, :2], _nibbles_in_order(blocks[:, 74:82]), 0.25), None


def unpack_iq3_xxs(blocks: Bytes) -> Unpacked:
    """f16, 64 code bytes, then per group of 32 a word of four 7-bit sign sets and a 4-bit sub-scale."""
    words = np.ascontiguousarray(blocks[:, 66:98]).view("<u4")
    quants = _signed_vectors(Grid.IQ3_XXS, blocks[:, 2:66], _packed_signs(words))
    return quants, _sub_scales(blocks[:, :2], words >> 28, 0.5), None


def unpack_iq3_s(blocks: Bytes) -> Unpacked:
    """f16, 64 code bytes, 8 bytes of ninth code bits, 32 bytes of signs, 4 bytes of sub-scales; groups of 32."""
    codes = blocks[:, 2:66] | (bit_flags(blocks[:, 66:74]).astype(np.uint16) << 8)
    quants = _signed_vectors(Grid.IQ3_S, codes, bit_flags(blocks[:, 74:106]))
    return quants, _sub_scales(blocks[:, :2], _nibbles_in_order(blocks[:, 106:110]), 2.0), None


def _signed_vectors(grid: Grid, codes: Integers, negative: Bytes) -> Quants:
    """Vectors of the code book with signs: codes [n, 256 / vector] and sign flags [n, 256] to int8 [n, 256]."""
    return signed(look_up(grid, codes), negative)


def _sub_scales(scale: Bytes, codes: Integers, unit: float) -> Floats:
    """Block scale * (code + 1/2) * unit; exact in float32."""
    return half_to_float(scale) * ((codes.astype(np.float32) + np.float32(0.5)) * np.float32(unit))


def _packed_signs(words: Integers) -> Bytes:
    """The flags of the four 7-bit sign sets in the low 28 bits: [n, k] to uint8 [n, 32 k]."""
    sets = (words[:, :, None] >> np.arange(0, 28, 7, dtype=np.uint32)) & 127
    return _complete_signs(sets.reshape(len(words), -1))


def _complete_signs(sets: Integers) -> Bytes:
    """Eight flags from seven: the eighth makes the number of negative values even. [n, k] to uint8 [n, 8 k]."""
    parity = sets ^ (sets >> 4)
    parity ^= parity >> 2
    parity ^= parity >> 1
    return bit_flags((sets | (parity << 7)).astype(np.uint8))


def _nibbles_in_order(data: Bytes) -> Integers:
    """Low then high nibble of each byte: uint8 [n, k] to [n, 2 k]."""
    return np.stack((data & 15, data >> 4), axis=-1).reshape(len(data), -1)


def _pairs_in_order(data: Bytes) -> Integers:
    """The four bit pairs of each byte, lowest first: uint8 [n, k] to [n, 4 k]."""
    return ((data[:, :, None] >> np.arange(0, 8, 2, dtype=np.uint8)) & 3).reshape(len(data), -1)

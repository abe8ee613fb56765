"""Types below 2 bits: IQ1_S and IQ1_M (ternary code book vectors with a small shift), TQ1_0 and TQ2_0 (ternary).

IQ1 values are d * (v +- 1/8) with v in -1, 0, 1: here the integer 8 v +- 1 and the scale d / 8, which is exact.
Source: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h (layouts of the blocks)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .bits import fields, half_to_float
from .grids import Grid, look_up

if TYPE_CHECKING:
    from .bits import Bytes, Integers, Quants, Unpacked


def unpack_iq1_s(blocks: Bytes) -> Unpacked:
    """f16, 32 code bytes, eight words of 4 upper code triples, a 3-bit sub-scale, the shift's sign; groups of 32."""
    words = np.ascontiguousarray(blocks[:, 34:50]).view("<u2")
    upper = (words[:, :, None] >> np.arange(0, 12, 3, dtype=np.uint16)) & 7
    codes = blocks[:, 2:34] | (upper.reshape(len(blocks), 32) << 8)
    odd = ((words >> 12) & 7) * 2 + 1
    quants = _shifted(codes, np.repeat(words >> 15, 4, axis=1))
    return quants, half_to_float(blocks[:, :2]) * (odd.astype(np.float32) * np.float32(0.125)), None


def unpack_iq1_m(blocks: Bytes) -> Unpacked:
    """32 code bytes, 16 bytes of upper code triples and shift signs, 8 bytes of 3-bit sub-scales; groups of 16.

    The block's f16 scale is spread over the top nibbles of the four sub-scale words.
    """
    nibbles = np.stack((blocks[:, 32:48] & 15, blocks[:, 32:48] >> 4), axis=-1).reshape(len(blocks), 32)
    codes = blocks[:, :32] | ((nibbles & 7).astype(np.uint16) << 8)
    words = np.ascontiguousarray(blocks[:, 48:56]).view("<u2")
    spread = (words >> 12) << np.arange(0, 16, 4, dtype=np.uint16)
    scale = np.bitwise_or.reduce(spread, axis=1, keepdims=True).view(np.float16).astype(np.float32)
    odd = ((words[:, :, None] >> np.arange(0, 12, 3, dtype=np.uint16)) & 7).reshape(len(blocks), 16) * 2 + 1
    return _shifted(codes, nibbles >> 3), scale * (odd.astype(np.float32) * np.float32(0.125)), None


def _shifted(codes: Integers, down: Integers) -> Quants:
    """8 v + 1, or 8 v - 1 where the flag is set: codes and flags [n, 32] to int8 [n, 256]."""
    shifts = np.int8(1) - (down.astype(np.int8) << 1)
    return look_up(Grid.IQ1_S, codes) * np.int8(8) + np.repeat(shifts, 8, axis=1)


def unpack_tq1_0(blocks: Bytes) -> Unpacked:
    """48 bytes of five ternary digits, 4 bytes of four, f16; one group of 256."""
    count = len(blocks)
    quants = np.concatenate(
        (
            _ternary_digits(blocks[:, :32], 5).reshape(count, 160),
            _ternary_digits(blocks[:, 32:48], 5).reshape(count, 80),
            _ternary_digits(blocks[:, 48:52], 4).reshape(count, 16),
        ),
        axis=1,
    )
    return quants, half_to_float(blocks[:, 52:54]), None


def _ternary_digits(data: Bytes, digits: int) -> Quants:
    """The digits of bytes that are fractions of 256 in base 3, first digits of all bytes first: [n, digits, k]."""
    powers = (3 ** np.arange(digits)).astype(np.uint8)[:, None]
    rest = data[:, None, :] * powers  # modulo 256: the digits before are cut off
    return ((rest.astype(np.uint16) * 3) >> 8).astype(np.int8) - np.int8(1)


def unpack_tq2_0(blocks: Bytes) -> Unpacked:
    """64 bytes of 2-bit digits, f16; one group of 256."""
    digits = fields(blocks[:, :64].reshape(-1, 32), 2).reshape(len(blocks), 256)
    return digits.view(np.int8) - np.int8(1), half_to_float(blocks[:, 64:66]), None

"""Small vectorised helpers to take packed blocks apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Integers = npt.NDArray[np.integer]
    Bytes = npt.NDArray[np.uint8]
    Quants = npt.NDArray[np.int8]
    Floats = npt.NDArray[np.float32]
    Unpacked = tuple[Quants, Floats, Floats | None]


def half_to_float(data: Bytes) -> Floats:
    """Float16 pairs of bytes [n, 2k] as float32 [n, k]."""
    return np.ascontiguousarray(data).view("<f2").astype(np.float32)


def fields(data: Bytes, bits: int) -> Bytes:
    """Every field of `bits` bits, the low ones of all bytes first: uint8 [n, k] to [n, 8 / bits, k]."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    return (data[:, None, :] >> shifts) & np.uint8((1 << bits) - 1)


def bit_flags(data: Bytes) -> Bytes:
    """The bits of each byte, lowest first: uint8 [n, k] to [n, 8 k]."""
    return np.unpackbits(np.ascontiguousarray(data), axis=-1, bitorder="little")


def signed(magnitudes: Quants, negative: Bytes) -> Quants:
    """The magnitudes, negated where the flag is 1; both of one shape."""
    flags = negative.view(np.int8)
    return (magnitudes ^ -flags) + flags  # two's complement: half the time of a choice

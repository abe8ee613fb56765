"""The table of block layouts: how each quant type comes apart into integers, scales and minimums."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..quant_types import QuantType
from . import four_bit, iq_quants, k_quants, legacy, low_bit

if TYPE_CHECKING:
    from .bits import Bytes, Unpacked


@dataclass(frozen=True, slots=True)
class Layout:
    """`unpack` takes blocks uint8 [n, type_size] to integers int8 [n, block_size], scales float32 [n, block_size /
    group_size] and minimums of the same shape, or None where the type has none.
    """

    unpack: Callable[[Bytes], Unpacked]
    group_size: int
    has_minimums: bool = False


LAYOUTS: dict[QuantType, Layout] = {
    QuantType.Q4_0: Layout(legacy.unpack_q4_0, 32),
    QuantType.Q4_1: Layout(legacy.unpack_q4_1, 32, has_minimums=True),
    QuantType.Q5_0: Layout(legacy.unpack_q5_0, 32),
    QuantType.Q5_1: Layout(legacy.unpack_q5_1, 32, has_minimums=True),
    QuantType.Q8_0: Layout(legacy.unpack_q8_0, 32),
    QuantType.Q2_K: Layout(k_quants.unpack_q2_k, 16, has_minimums=True),
    QuantType.Q3_K: Layout(k_quants.unpack_q3_k, 16),
    QuantType.Q4_K: Layout(k_quants.unpack_q4_k, 32, has_minimums=True),
    QuantType.Q5_K: Layout(k_quants.unpack_q5_k, 32, has_minimums=True),
    QuantType.Q6_K: Layout(k_quants.unpack_q6_k, 16),
    QuantType.IQ1_S: Layout(low_bit.unpack_iq1_s, 32),
    QuantType.IQ1_M: Layout(low_bit.unpack_iq1_m, 16),
    QuantType.IQ2_XXS: Layout(iq_quants.unpack_iq2_xxs, 32),
    QuantType.IQ2_XS: Layout(iq_quants.unpack_iq2_xs, 16),
    QuantType.IQ2_S: Layout(iq_quants.unpack_iq2_s, 16),
    QuantType.IQ3_XXS: Layout(iq_quants.unpack_iq3_xxs, 32),
    QuantType.IQ3_S: Layout(iq_quants.unpack_iq3_s, 32),
    QuantType.IQ4_NL: Layout(four_bit.unpack_iq4_nl, 32),
    QuantType.IQ4_XS: Layout(four_bit.unpack_iq4_xs, 32),
    QuantType.TQ1_0: Layout(low_bit.unpack_tq1_0, 256),
    QuantType.TQ2_0: Layout(low_bit.unpack_tq2_0, 256),
    QuantType.MXFP4: Layout(four_bit.unpack_mxfp4, 32),
    QuantType.NVFP4: Layout(four_bit.unpack_nvfp4, 16),
}
"""Every type made of blocks. Types of single numbers (floats, integers) are in `plain.py`."""

"""Types that are single numbers: floats of 16, 32 and 64 bits, and signed integers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..quant_types import QuantType

if TYPE_CHECKING:
    from .bits import Bytes, Floats

_DTYPES = {
    QuantType.F32: "<f4",
    QuantType.F16: "<f2",
    QuantType.F64: "<f8",
    QuantType.I8: "<i1",
    QuantType.I16: "<i2",
    QuantType.I32: "<i4",
    QuantType.I64: "<i8",
}
PLAIN_TYPES = frozenset((*_DTYPES, QuantType.BF16))


def plain_to_float(quant_type: QuantType, data: Bytes, values: Floats) -> None:
    """Contiguous bytes uint8 [n] into float32 [n / type_size]; wider types are rounded to the nearest."""
    if quant_type is QuantType.BF16:  # the upper half of a float32
        np.left_shift(data.view("<u2"), 16, out=values.view(np.uint32), dtype=np.uint32)
        return
    with np.errstate(over="ignore", invalid="ignore"):  # a large float64 becomes infinite, a NaN stays one
        values[:] = data.view(_DTYPES[quant_type])

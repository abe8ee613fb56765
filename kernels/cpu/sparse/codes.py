"""A neuron's weights as one contiguous run of codes, and how a kernel turns them into float32.

A run is units of 32 values; of a unit of nibbles byte l holds values l (low) and 16 + l (high), as the files do. Codes
and scales are those of the file, bit for bit; only their order differs.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np

from localllm.gguf_io import QuantType, Tensor, decompose, dequantize
from localllm.kernels.cpu.ir_types import F32, F32X16, I8X16, I32, Value
from localllm.kernels.cpu.vector_math import load_half

if TYPE_CHECKING:
    import numpy.typing as npt

    from localllm.kernels.cpu.emit import Emitter

    Bytes = npt.NDArray[np.uint8]
    Floats = npt.NDArray[np.float32]

UNIT = 32
VECTORS = 2  # of 16 lanes in a unit


class CodeKind(Enum):
    """How a value is stored; the number is the bytes of a unit."""

    NIBBLES = 16
    BYTES = 32
    HALVES = 64
    FLOATS = 128


@dataclass(frozen=True, slots=True)
class Codes:
    """value = (code - zero_point) * scale + minimum; a scale for each `group` inputs, none if `group` is 0.

    `half_scales`: scales and minimums are float16 numbers of the file; otherwise only float32 holds them exactly.
    """

    name: str
    kind: CodeKind
    group: int = 0
    zero_point: int = 0
    minimum: bool = False
    half_scales: bool = False


_NIBBLES, _BYTES = CodeKind.NIBBLES, CodeKind.BYTES
_CODES = {
    QuantType.Q4_0: Codes("q4_0", _NIBBLES, 32, 8, half_scales=True),
    QuantType.Q4_1: Codes("q4_1", _NIBBLES, 32, minimum=True, half_scales=True),
    QuantType.Q5_0: Codes("q5_0", _BYTES, 32, half_scales=True),
    QuantType.Q5_1: Codes("q5_1", _BYTES, 32, minimum=True, half_scales=True),
    QuantType.Q8_0: Codes("q8_0", _BYTES, 32, half_scales=True),
    QuantType.Q2_K: Codes("q2_k", _NIBBLES, 16, minimum=True),
    QuantType.Q3_K: Codes("q3_k", _NIBBLES, 16, 4),
    QuantType.Q4_K: Codes("q4_k", _NIBBLES, 32, minimum=True),
    QuantType.Q5_K: Codes("q5_k", _BYTES, 32, minimum=True),
    QuantType.Q6_K: Codes("q6_k", _BYTES, 16),
    QuantType.F16: Codes("f16", CodeKind.HALVES),
    QuantType.BF16: Codes("f32", CodeKind.FLOATS),
    QuantType.F32: Codes("f32", CodeKind.FLOATS),
}


def codes_of(quant_type: QuantType) -> Codes | None:
    """How values of this type lie in a run; None where a run would take more memory than it saves."""
    return _CODES.get(quant_type)


def units_of(columns: int) -> int:
    """Units that hold so many values."""
    return -(-columns // UNIT)


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """Some rows of a matrix: `units` uint8 [rows, units, kind.value]; scales and minimums [rows, groups] or None."""

    units: Bytes
    scales: Floats | None
    minimums: Floats | None


def parts_of(codes: Codes, tensor: Tensor) -> Parts:
    """Rows of a matrix as runs along the rows."""
    rows, units = tensor.rows, units_of(tensor.columns)
    if not codes.group:
        kind = np.float16 if codes.kind is CodeKind.HALVES else np.float32
        values = np.zeros((rows, units * UNIT), kind)
        values[:, : tensor.columns] = dequantize(tensor)
        return Parts(values.view(np.uint8).reshape(rows, units, -1), None, None)
    found = decompose(tensor)
    quants = found.quants.reshape(rows, units, UNIT)
    return Parts(pack_codes(codes, quants), found.scales, found.minimums)


def pack_codes(codes: Codes, quants: npt.NDArray[np.int8]) -> Bytes:
    """Integers [..., 32] as units, uint8 [..., kind.value]."""
    if codes.kind is CodeKind.BYTES:
        return np.ascontiguousarray(quants).view(np.uint8)
    low, high = ((quants[..., k : k + 16] + np.int8(codes.zero_point)).view(np.uint8) for k in (0, 16))
    return low | (high << np.uint8(4))


def emit_unit(e: Emitter, codes: Codes, address: Value) -> list[Value]:
    """The 32 values of a unit before their scale: two vectors of 16 float32."""
    kind = codes.kind
    if kind is CodeKind.FLOATS:
        return [e.load(F32X16, address, 64 * k) for k in range(VECTORS)]
    if kind is CodeKind.HALVES:
        return [load_half(e, 16, address, 32 * k) for k in range(VECTORS)]
    if kind is CodeKind.BYTES:
        return [e.convert(e.convert(e.load(I8X16, address, 16 * k), I32), F32) for k in range(VECTORS)]
    wide = e.convert(e.load(I8X16, address), I32, signed=False)
    if e.isa.name == "avx512vnni":  # a permutation looks at the lowest 4 bits of a lane only
        table = e.constant(F32X16, [float(code - codes.zero_point) for code in range(16)])
        indices = (wide, e.shift_right(wide, 4))
        return [e.call("llvm.x86.avx512.permvar.sf.512", F32X16, table, index) for index in indices]
    return [e.convert(e.sub(code, codes.zero_point), F32) for code in (e.bit_and(wide, 15), e.shift_right(wide, 4))]

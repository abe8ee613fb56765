"""The LLVM types that kernels use, and what the emitter asks of a type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from llvmlite import ir

if TYPE_CHECKING:
    Value: TypeAlias = Any
    Type: TypeAlias = Any
else:
    Value, Type = ir.Value, ir.Type

VOID = ir.VoidType()
I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
F16, F32, F64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()
POINTER = ir.PointerType()
F32X16, I32X16, I8X16 = ir.VectorType(F32, 16), ir.VectorType(I32, 16), ir.VectorType(I8, 16)

Offset: TypeAlias = "Value | int"  # bytes
Number: TypeAlias = "Value | int | float"


def vector(element: Type, lanes: int) -> Type:
    """The vector type of `lanes` elements."""
    return ir.VectorType(element, lanes)


def is_vector(kind: Type) -> bool:
    """Whether a type is a vector type."""
    return isinstance(kind, ir.VectorType)


def element_type(kind: Type) -> Type:
    """The type of one lane; a scalar type is its own element."""
    return kind.element if is_vector(kind) else kind


def is_float(kind: Type) -> bool:
    """Whether a scalar or vector type holds floats."""
    return not isinstance(element_type(kind), ir.IntType)


def float_bits(kind: Type) -> int:
    """The width of a float type."""
    return {"half": 16, "float": 32, "double": 64}[str(kind)]


def suffix(kind: Type) -> str:
    """How LLVM spells a type in the name of an overloaded intrinsic."""
    if is_vector(kind):
        return f"v{kind.count}{suffix(kind.element)}"
    return {"half": "f16", "float": "f32", "double": "f64", "ptr": "p0"}.get(str(kind), str(kind))

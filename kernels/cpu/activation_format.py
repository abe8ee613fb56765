"""Writing rows of activations in the form that a tile layout multiplies with."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from .activations import REFINEMENT_BYTES, emit_quantize_block, emit_quantize_rows
from .ir_types import F32X16
from .tiles.layout import Activation

if TYPE_CHECKING:
    from collections.abc import Callable

    from .emit import Emitter
    from .ir_types import Value

Form: TypeAlias = Activation
FLOATS, RECORDS = Form.FLOATS, Form.RECORDS


def row_bytes(form: Form, blocks: int, refinements: int = 0) -> int:
    """Bytes of a row of `blocks` times 32 values."""
    return blocks * form.value + refinements * REFINEMENT_BYTES


def refinements_of(form: Form, blocks: int) -> int:
    """Refinements of a row that comes out of a norm: one block in sixteen.

    Measured on SmolLM2: they take away two thirds of what 8-bit rounding costs in KL divergence.
    """
    return max(1, blocks // 16) if form is RECORDS else 0


def emit_store(e: Emitter, form: Form, row: Value, block: Value, low: Value, high: Value) -> None:
    """Write values 32 * block to 32 * block + 31 of a row, two vectors of 16."""
    address = e.at(row, e.mul(block, form.value))
    if form is RECORDS:
        emit_quantize_block(e, low, high, address)
    else:
        e.store(low, address)
        e.store(high, address, 64)


def emit_store_rows(
    e: Emitter, form: Form, count: int, row: Callable[[Value], Value], block: Value, values: Value
) -> None:
    """The same for `count` rows (a power of two) at once, whose values lie in float32 [count, 32]."""

    def address(t: Value) -> Value:
        return e.at(row(t), e.mul(block, form.value))

    if form is RECORDS:
        emit_quantize_rows(e, count, values, address)
        return

    def copy(t: Value, _: list[Value]) -> None:
        for k in (0, 64):
            e.store(e.load(F32X16, values, e.mul(t, 128), k), address(t), k)

    e.loop(count, [], copy)

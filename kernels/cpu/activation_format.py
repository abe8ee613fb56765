"""Writing rows of activations in the form that a tile layout multiplies with."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from .activations import emit_quantize_block
from .tiles.layout import Activation

if TYPE_CHECKING:
    from .emit import Emitter
    from .ir_types import Value

Form: TypeAlias = Activation
FLOATS, RECORDS = Form.FLOATS, Form.RECORDS


def row_bytes(form: Form, blocks: int) -> int:
    """Bytes of a row of `blocks` times 32 values."""
    return blocks * form.value


def emit_store(e: Emitter, form: Form, row: Value, block: Value, low: Value, high: Value) -> None:
    """Write values 32 * block to 32 * block + 31 of a row, two vectors of 16."""
    address = e.at(row, e.mul(block, form.value))
    if form is RECORDS:
        emit_quantize_block(e, low, high, address)
    else:
        e.store(low, address)
        e.store(high, address, 64)

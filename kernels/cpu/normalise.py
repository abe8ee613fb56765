"""Row-wise kernels: norms, quantisation, activations, residual sums. A row is a whole number of blocks of 32 floats.

Columns beyond a row's width are zeros, in sources and in what is written, so matrices may be padded to whole blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from localllm.kernels.errors import UnsupportedModelError
from localllm.kernels.spec import Activation

from .activation_format import FLOATS, emit_store
from .activations import RECORD_BYTES, REFINEMENT_BYTES, SCALE, emit_quantize_block
from .compile import KernelSource
from .ir_types import F32, F32X16, I8X16, I32, Value
from .operation import Arguments, Kind, Operation, Rows, Share, float_bits, number_of
from .vector_math import sigmoid, tanh

if TYPE_CHECKING:
    from .activation_format import Form
    from .emit import Emitter

BLOCK = 32
MOST_BLOCKS = 2048  # of a row that has refinements


class NormKind(Enum):
    """What is done to a row before its gain."""

    NONE = "none"  # nothing, and no gain
    RMS = "rms"
    LAYER = "layer"


@dataclass(frozen=True, slots=True)
class NormWeights:
    """A norm over `width` columns: addresses of padded float32 vectors, gain and (layer norm) bias."""

    kind: NormKind
    width: int
    gain: int = 0
    bias: int = 0
    eps: float = 0.0

    @property
    def fields(self) -> tuple[int, ...]:
        """As record fields, for `_NormValue`."""
        return self.gain, self.bias, float_bits(self.eps), float_bits(1.0 / self.width)


def normalise(
    norm: NormWeights,
    *,
    source: Rows,
    target: Rows,
    blocks: int,
    target_format: Form,
    share: Share,
    row_list: int = 0,
    kind: Kind = Kind.NORM,
    barrier: bool = True,
) -> Operation:
    """target[m] = norm(source[m]) in `target_format`; `row_list`: state word with the address of int64 source rows."""
    if target.refinements and blocks > MOST_BLOCKS:
        raise UnsupportedModelError(f"rows of {32 * blocks} values are too long", hint=f"At most {32 * MOST_BLOCKS}.")
    arguments = (
        *(*source.fields, *target.fields, blocks, *norm.fields, *share.fields),
        target.refinements,
    )
    refined = bool(target.refinements)

    def emit(e: Emitter, record: Value, step: Value, thread: Value) -> None:
        values = Arguments(e, record, thread)
        source_rows, target_rows, block_count = values.rows(), values.rows(), values.integer()
        weights = _NormValue(e, norm.kind, values)
        each_row = values.each_row(step)
        refinements, number = values.integer(), number_of(e, step, row_list)
        scales = e.scratch(4 * MOST_BLOCKS) if refined else None

        def row(m: Value) -> None:
            x, out = source_rows.row(number(m)), target_rows.row(m)
            weights.prepare(x, block_count)

            def block(i: Value, _: list[Value]) -> None:
                offset = e.mul(i, 4 * BLOCK)
                low, high = (weights.apply(e.load(F32X16, x, offset, k), e.add(offset, k)) for k in (0, 64))
                emit_store(e, target_format, out, i, low, high)
                if scales is not None:
                    e.store(e.load(F32, out, e.mul(i, RECORD_BYTES), SCALE), scales, e.mul(i, 4))

            e.loop(block_count, [], block)
            if scales is not None:
                _emit_refinements(e, weights, x, out, block_count, refinements, scales)

        each_row(row)

    key = f"{norm.kind.value} {target_format.name} {row_list} {refined}"
    return Operation(KernelSource("normalise", key, emit), arguments, kind, barrier)


def _emit_refinements(
    e: Emitter, weights: _NormValue, x: Value, out: Value, blocks: Value, refinements: Value, scales: Value
) -> None:
    """Behind the records: what rounding left of the blocks with the largest scales; of equal ones the first."""

    def refine(number: Value, _: list[Value]) -> None:
        def look(i: Value, best: list[Value]) -> list[Value]:
            scale = e.load(F32, scales, e.mul(i, 4))
            larger = e.compare(">", scale, best[0])
            return [e.select(larger, scale, best[0]), e.select(larger, i, best[1])]

        index = e.loop(blocks, [e.constant(F32, -1.0), e.integer(0)], look)[1]
        e.store(e.constant(F32, -1.0), scales, e.mul(index, 4))
        record, offset = e.at(out, e.mul(index, RECORD_BYTES)), e.mul(index, 4 * BLOCK)
        scale = e.splat(e.neg(e.load(F32, record, SCALE)), 16)
        halves = []
        for k in range(2):
            value = weights.apply(e.load(F32X16, x, offset, 64 * k), e.add(offset, 64 * k))
            quants = e.convert(e.load(I8X16, record, 16 * k), F32)
            halves.append(e.fma(scale, quants, value))
        entry = e.at(out, e.mul(blocks, RECORD_BYTES), e.mul(number, REFINEMENT_BYTES))
        emit_quantize_block(e, halves[0], halves[1], entry)
        e.store(e.convert(index, I32), entry, RECORD_BYTES)

    e.loop(refinements, [], refine)


def add_normalised(
    norm: NormWeights,
    *,
    residual: Rows,
    source: Rows,
    target: Rows,
    blocks: int,
    scale: float,
    share: Share,
    residual_list: int = 0,
    kind: Kind = Kind.NORM,
    barrier: bool = True,
) -> Operation:
    """target[m] = residual[m] + scale * norm(source[m]), float32; target may be residual.

    `residual_list`: state word with the address of int64 rows, residual[list[m]] is added.
    """
    arguments = (
        *(*residual.fields, *source.fields, *target.fields, blocks, float_bits(scale)),
        *(*norm.fields, *share.fields),
    )

    def emit(e: Emitter, record: Value, step: Value, thread: Value) -> None:
        values = Arguments(e, record, thread)
        residuals, sources, targets, block_count = values.rows(), values.rows(), values.rows(), values.integer()
        factor = e.splat(values.float(), 16)
        weights = _NormValue(e, norm.kind, values)
        each_row = values.each_row(step)
        number = number_of(e, step, residual_list)

        def row(m: Value) -> None:
            x, old = sources.row(m), residuals.row(number(m))
            weights.prepare(x, block_count)

            def piece(offset: Value, _: list[Value]) -> None:
                y = weights.apply(e.load(F32X16, x, offset), offset)
                total = e.fma(y, factor, e.load(F32X16, old, offset))
                e.store(total, targets.row(m), offset)

            e.loop(e.mul(block_count, 4 * BLOCK), [], piece, step=64)

        each_row(row)

    key = f"{norm.kind.value} {residual_list}"
    return Operation(KernelSource("add_normalised", key, emit), arguments, kind, barrier)


def activate(
    activation: Activation,
    *,
    gate: Rows | None,
    up: Rows,
    target: Rows,
    blocks: int,
    target_format: Form,
    share: Share,
    kind: Kind = Kind.GATE_UP,
    barrier: bool = True,
) -> Operation:
    """target[m] = activation(gate[m]) * up[m], or activation(up[m]) without a gate, in `target_format`."""
    first = up if gate is None else gate
    arguments = (*first.fields, *up.fields, *target.fields, blocks, *share.fields)
    gated = gate is not None

    def emit(e: Emitter, record: Value, step: Value, thread: Value) -> None:
        values = Arguments(e, record, thread)
        gates, ups, targets, block_count = values.rows(), values.rows(), values.rows(), values.integer()
        each_row = values.each_row(step)

        def row(m: Value) -> None:
            def block(i: Value, _: list[Value]) -> None:
                offset = e.mul(i, 4 * BLOCK)
                results = []
                for k in (0, 64):
                    g = e.load(F32X16, gates.row(m), offset, k)
                    u = e.load(F32X16, ups.row(m), offset, k) if gated else None
                    results.append(emit_activation(e, activation, g, u))
                emit_store(e, target_format, targets.row(m), i, *results)

            e.loop(block_count, [], block)

        each_row(row)

    key = f"{activation.value} {gated} {target_format.name}"
    return Operation(KernelSource("activate", key, emit), arguments, kind, barrier)


def finish_logits(
    *, logits: Rows, width: int, scale: float, softcap: float | None, share: Share, barrier: bool = True
) -> Operation:
    """logits = softcap(scale * logits), in place, `width` floats rounded up to 16."""
    arguments = (*logits.fields, width, float_bits(scale), float_bits(softcap or 1.0), *share.fields)
    capped = softcap is not None

    def emit(e: Emitter, record: Value, step: Value, thread: Value) -> None:
        values = Arguments(e, record, thread)
        rows, columns = values.rows(), values.integer()
        factor, cap = values.float(), values.float()
        each_row = values.each_row(step)
        inverse = e.div(1.0, cap)

        def row(m: Value) -> None:
            def piece(column: Value, _: list[Value]) -> None:
                address = e.at(rows.row(m), e.mul(column, 4))
                z = e.mul(e.load(F32X16, address), e.splat(factor, 16))
                if capped:
                    z = e.mul(tanh(e, e.mul(z, e.splat(inverse, 16))), e.splat(cap, 16))
                e.store(z, address)

            e.loop(columns, [], piece, step=16)

        each_row(row)

    return Operation(KernelSource("finish_logits", str(capped), emit), arguments, Kind.HEAD, barrier)


def emit_activation(e: Emitter, activation: Activation, gate: Value, up: Value | None) -> Value:
    """activation(gate) * up of float32 lanes, or activation(gate)."""
    zero = 0.0
    if activation is Activation.SWIGLU_CLAMPED:
        gate = e.min(gate, 7.0)
        up = None if up is None else e.add(e.min(e.max(up, -7.0), 7.0), 1.0)
    elif activation is Activation.RELU_BOTH and up is not None:
        up = e.max(up, zero)
    nonlinear: dict[Activation, Callable[[], Value]] = {
        Activation.SILU: lambda: e.mul(gate, sigmoid(e, gate)),
        Activation.GELU: lambda: e.mul(e.mul(gate, 0.5), e.add(erf(e, e.mul(gate, 0.7071067811865476)), 1.0)),
        Activation.GELU_TANH: lambda: _gelu_tanh(e, gate),
        Activation.RELU: lambda: e.max(gate, zero),
        Activation.RELU_SQUARED: lambda: e.mul(e.max(gate, zero), e.max(gate, zero)),
        Activation.RELU_BOTH: lambda: e.max(gate, zero),
        Activation.SWIGLU_CLAMPED: lambda: e.mul(gate, sigmoid(e, e.mul(gate, 1.702))),
    }
    y = nonlinear[activation]()
    return y if up is None else e.mul(y, up)


def _gelu_tanh(e: Emitter, x: Value) -> Value:
    """0.5 x (1 + tanh(z)) = x * sigmoid(2 z) with z = sqrt(2 / pi) * (x + 0.044715 x**3)."""
    cubic = e.fma(e.mul(e.mul(x, x), 0.044715), x, x)
    return e.mul(x, sigmoid(e, e.mul(cubic, 2 * 0.7978845608028654)))


class _NormValue:
    """A norm inside a kernel: `prepare` looks at a row, `apply` gives its pieces."""

    def __init__(self, e: Emitter, kind: NormKind, arguments: Arguments) -> None:
        self.e, self.kind = e, kind
        self.gain, self.bias = arguments.integer(), arguments.integer()
        self.eps, self.inverse_width = arguments.float(), arguments.float()
        self.mean = self.factor = e.constant(F32X16, 0.0)

    def prepare(self, row: Value, blocks: Value) -> None:
        """Find the row's mean and the factor that gives it length one."""
        e = self.e
        if self.kind is NormKind.NONE:
            return
        zeros = [e.constant(F32X16, 0.0)] * 2
        columns = e.mul(blocks, BLOCK)
        padding = e.constant(F32, 0.0)
        if self.kind is NormKind.LAYER:

            def add(i: Value, sums: list[Value]) -> list[Value]:
                return [e.add(total, e.load(F32X16, row, e.mul(i, 4), 64 * k)) for k, total in enumerate(sums)]

            total = e.horizontal_sum(e.add(*e.loop(columns, zeros, add, step=BLOCK)))
            mean = e.mul(total, self.inverse_width)
            self.mean = e.splat(mean, 16)
            # Each column beyond the width is zero and adds mean**2 below.
            missing = e.sub(e.convert(columns, F32), e.div(1.0, self.inverse_width))
            padding = e.mul(e.mul(mean, mean), missing)

        def square(i: Value, sums: list[Value]) -> list[Value]:
            result = []
            for k, total in enumerate(sums):
                x = e.load(F32X16, row, e.mul(i, 4), 64 * k)
                if self.kind is NormKind.LAYER:
                    x = e.sub(x, self.mean)
                result.append(e.fma(x, x, total))
            return result

        total = e.sub(e.horizontal_sum(e.add(*e.loop(columns, zeros, square, step=BLOCK))), padding)
        self.factor = e.splat(e.div(1.0, e.sqrt(e.add(e.mul(total, self.inverse_width), self.eps))), 16)

    def apply(self, x: Value, offset: Value) -> Value:
        """The norm of 16 values that lie `offset` bytes into the row."""
        e = self.e
        if self.kind is NormKind.NONE:
            return x
        if self.kind is NormKind.LAYER:
            x = e.sub(x, self.mean)
        y = e.mul(e.mul(x, self.factor), e.load(F32X16, self.gain, offset))
        return e.add(y, e.load(F32X16, self.bias, offset)) if self.kind is NormKind.LAYER else y


# Abramowitz and Stegun 7.1.26 is too coarse for float32; this is the rational fit of Eigen and XLA on |x| <= 4.
_ERF_TOP = (-2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05,
            -7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02)  # fmt: skip
_ERF_BOTTOM = (-1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03,
               -1.42647390514189e-02)  # fmt: skip


def erf(e: Emitter, x: Value) -> Value:
    """The error function of float32 lanes, absolute error below 1e-6."""
    x = e.min(e.max(x, -4.0), 4.0)
    square = e.mul(x, x)

    def polynomial(coefficients: tuple[float, ...]) -> Value:
        p = e.constant(x.type, coefficients[0])
        for coefficient in coefficients[1:]:
            p = e.fma(p, square, e.constant(x.type, coefficient))
        return p

    return e.div(e.mul(x, polynomial(_ERF_TOP)), polynomial(_ERF_BOTTOM))


__all__ = [
    "FLOATS",
    "NormKind",
    "NormWeights",
    "activate",
    "add_normalised",
    "emit_activation",
    "erf",
    "finish_logits",
    "normalise",
]

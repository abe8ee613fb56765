"""What all programs share: constants, byte products, nonlinearities, early launch, and how activations are stored."""

import os

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from localllm.kernels.gpu import linear
from localllm.kernels.gpu.families import Form

INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET", "0") == "1")
HAS_PTX = tl.constexpr(not INTERPRETED.value and torch.version.hip is None)

HALF = tl.constexpr(Form.HALF.value)
HALF_MINIMUM = tl.constexpr(Form.HALF_MINIMUM.value)
SUPER = tl.constexpr(Form.SUPER.value)
SUPER_SIGNED = tl.constexpr(Form.SUPER_SIGNED.value)
GROUP = tl.constexpr(Form.GROUP.value)

# Formats of an activation row of K columns, padded to KP (a multiple of 64); a set of them is a sum.
PLANES = tl.constexpr(1)  # float32, plane 2c+h holds elements 64p + 32h + 16g + 4j + c at 8p + 4g + j: see layouts.py
BYTES = tl.constexpr(2)  # int8 in the order of `byte_place`, per 16 elements a float32 scale and scale * sum
NATURAL = tl.constexpr(4)  # float32 in natural order
SHORT = tl.constexpr(8)  # float16, bfloat16 or float32 in natural order: input of tensor cores
FRAGMENTS = tl.constexpr(16)  # as SHORT, in the order of `fragment_place`: FRAGMENT_ROWS rows that lie before SHORT's
FRAGMENT_ROWS = tl.constexpr(linear.FRAGMENT_ROWS)

SILU = tl.constexpr(0)
GELU = tl.constexpr(1)
GELU_TANH = tl.constexpr(2)
RELU = tl.constexpr(3)
RELU_SQUARED = tl.constexpr(4)
RELU_BOTH = tl.constexpr(5)
SWIGLU_CLAMPED = tl.constexpr(6)


@triton.jit
def start_early(PDL: tl.constexpr):
    """Let the next kernel of the stream start now (it must call `wait_for_inputs` before it reads what we write)."""
    if PDL:
        gdc_launch_dependents()


@triton.jit
def wait_for_inputs(PDL: tl.constexpr):
    """Wait until all earlier kernels have written their results."""
    if PDL:
        gdc_wait()


@triton.jit
def dot4(a, b, c, SIGNED: tl.constexpr):
    """c + the sum of the four products of the bytes of a (signed or not) and the signed bytes of b, int32."""
    if HAS_PTX:
        return tl.inline_asm_elementwise(
            "dp4a.s32.s32 $0, $1, $2, $3;" if SIGNED else "dp4a.u32.s32 $0, $1, $2, $3;", "=r,r,r,r", [a, b, c],
            dtype=tl.int32, is_pure=True, pack=1,
        )
    else:
        for i in tl.static_range(4):
            c += ((a << (24 - 8 * i)) >> 24 if SIGNED else (a >> (8 * i)) & 255) * ((b << (24 - 8 * i)) >> 24)
        return c


@triton.jit
def tanh(x):
    """Hyperbolic tangent, exact to a few float32 digits and free of overflow."""
    small = tl.exp(-2.0 * tl.abs(x))
    y = (1.0 - small) / (1.0 + small)
    return tl.where(tl.abs(x) < 0.01, x * (1.0 - x * x * 0.33333334), tl.where(x < 0, -y, y))


@triton.jit
def sigmoid(x):
    """1 / (1 + exp(-x)) without overflow."""
    small = tl.exp(-tl.abs(x))
    return tl.where(x >= 0, 1.0, small) / (1.0 + small)


@triton.jit
def activate(x, KIND: tl.constexpr):
    """The nonlinearity of one value (for a gated block: of the gate)."""
    if KIND == SILU:
        return x * sigmoid(x)
    elif KIND == GELU:
        return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif KIND == GELU_TANH:
        return 0.5 * x * (1.0 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))
    elif KIND == RELU_SQUARED:
        y = tl.maximum(x, 0.0)
        return y * y
    elif KIND == SWIGLU_CLAMPED:
        y = tl.minimum(x, 7.0)
        return y * sigmoid(1.702 * y)
    else:
        return tl.maximum(x, 0.0)


@triton.jit
def gated(gate, up, KIND: tl.constexpr):
    """activation(gate) * up."""
    if KIND == SWIGLU_CLAMPED:
        return activate(gate, KIND) * (tl.minimum(tl.maximum(up, -7.0), 7.0) + 1.0)
    elif KIND == RELU_BOTH:
        return activate(gate, KIND) * tl.maximum(up, 0.0)
    else:
        return activate(gate, KIND) * up


@triton.jit
def round_to_integer(x):
    """x rounded to nearest for |x| < 2**22: adding 1.5 * 2**23 leaves no fraction bits."""
    return (x + 12582912.0) - 12582912.0


@triton.jit
def _store_short(at, v, mask, SHORT_SCALE: tl.constexpr):
    s = v * SHORT_SCALE
    if at.dtype.element_ty == tl.float16:
        s = tl.minimum(tl.maximum(s, -65504.0), 65504.0)
    tl.store(at, s.to(at.dtype.element_ty), mask=mask)


@triton.constexpr_function
def fragment_width(padded):
    """Columns of a row of FRAGMENTS: whole groups of 128."""
    return (padded + 127) // 128 * 128


@triton.jit
def fragment_place(row, e, KP: tl.constexpr):
    """Where FRAGMENTS has column e of a row: as 4-bit weights leave their words, lane after lane (fragments.py).

    Eight rows and a group of 128 columns are 1024 values. In the group unit u (unpack.py), word w, nibbles of half b
    and byte c of row g come at 256w + 32g + 8u + 4b + 2(c % 2) + c // 2.
    """
    i = e % 128
    lane = row % 8 * 4 + i // 64 * 2 + i // 16 % 2
    group = row // 8 * (fragment_width(KP) // 128) + e // 128
    return group * 1024 + i // 4 % 4 * 256 + lane * 8 + i // 32 % 2 * 4 + i % 2 * 2 + i % 4 // 2


@triton.jit
def byte_place(e, KP: tl.constexpr):
    """Where BYTES has columns e..e+15 of a row, e % 16 == 0: low ones of all units (unpack.py), then high ones."""
    return e // 32 % 2 * (KP // 2) + e // 64 * 32 + e % 32


@triton.jit
def byte_facts_place(e):
    """Where a row's facts have the scale of columns e..e+15; scale * sum lies two behind it."""
    return e // 64 * 8 + e // 16 % 2 * 4 + e // 32 % 2


@triton.jit
def store_activation(
    planes, quants, facts, natural, short, row, start, v, ok, KP: tl.constexpr, FORMATS: tl.constexpr
):
    """Store groups of elements v [A, width], from element `start` [A] of activation row `row` [A], in all FORMATS.

    `ok` [A] masks groups. BYTES needs a width of 16 and `start` to be multiples of it.
    """
    e = start[:, None] + tl.arange(0, v.shape[1])[None, :]
    line = (row * KP)[:, None]
    mask = ok[:, None]
    if FORMATS & 1:
        i = e % 64
        position = (2 * (i % 4) + i // 32) * (KP // 8) + (e // 64) * 8 + (i % 32) // 4
        tl.store(planes + line + position, v, mask=mask)
    if FORMATS & 2:
        tl.static_assert(v.shape[1] == 16)
        largest = tl.max(tl.abs(v), 1)
        inverse = tl.where(largest > 0, 127.0 / tl.maximum(largest, 1e-30), 0.0)
        n = round_to_integer(v * inverse[:, None])
        scale = largest * (1.0 / 127.0)
        at = facts + row * (KP // 8) + byte_facts_place(start)
        place = byte_place(start, KP)[:, None] + tl.arange(0, 16)[None, :]
        tl.store(quants + line + place, n.to(tl.int8), mask=mask)
        tl.store(at, scale, mask=ok)
        tl.store(at + 2, tl.sum(n, 1) * scale, mask=ok)
    if FORMATS & 4:
        tl.store(natural + line + e, v, mask=mask)
    if FORMATS & 8:
        _store_short(short + line + e, v, mask, 1.0)
    if FORMATS & 16:
        at = short - FRAGMENT_ROWS * fragment_width(KP) + fragment_place(row[:, None], e, KP)
        _store_short(at, v, mask, 1.0)


@triton.jit
def store_activation_part(
    planes, quants, facts, natural, short, row, e, v, ok, KP: tl.constexpr, FORMATS: tl.constexpr,
    SHORT_SCALE: tl.constexpr,
):
    """As `store_activation`, for the elements e [R] of one program; BYTES needs R = 16, a whole group."""
    if FORMATS & 1:
        i = e % 64
        position = (2 * (i % 4) + i // 32) * (KP // 8) + (e // 64) * 8 + (i % 32) // 4
        tl.store(planes + row * KP + position, v, mask=ok)
    if FORMATS & 2:
        tl.static_assert(e.shape[0] == 16)
        largest = tl.max(tl.abs(v), 0)
        inverse = tl.where(largest > 0, 127.0 / tl.maximum(largest, 1e-30), 0.0)
        n = round_to_integer(v * inverse)
        scale = largest * (1.0 / 127.0)
        start = tl.program_id(0) * 16
        at = facts + row * (KP // 8) + byte_facts_place(start)
        tl.store(quants + row * KP + byte_place(start, KP) + tl.arange(0, 16), n.to(tl.int8), mask=ok)
        tl.store(at, scale)
        tl.store(at + 2, tl.sum(n, 0) * scale)
    if FORMATS & 4:
        tl.store(natural + row * KP + e, v, mask=ok)
    if FORMATS & 8:
        _store_short(short + row * KP + e, v, ok, SHORT_SCALE)


@triton.jit
def store_short(at, v, mask):
    """Store a block's inner activations for tensor cores: divided by 64, so that a half holds up to 4 million."""
    _store_short(at, v, mask, 1.0 / 64.0)


@triton.jit
def sum_of_parts(
    parts, shares, extra, extra_gate, m, e, ok, total, K, PART_STEP, ROW_STEP, PARTS: tl.constexpr,
    HAS_SHARES: tl.constexpr, HAS_EXTRA: tl.constexpr, HAS_EXTRA_GATE: tl.constexpr,
):
    """`total` (zeros) + columns `e` of row m of PARTS partial results (of experts: weighted by `shares`) + extra."""
    for p in tl.static_range(PARTS):  # all requested at once
        part = tl.load(parts + m.to(tl.int64) * ROW_STEP + p * PART_STEP + e, mask=ok, other=0.0)
        if HAS_SHARES:
            share = tl.load(shares + m * PARTS + p)
            part = tl.where(share == 0.0, 0.0, part * share)  # what has no share may hold anything
        total += part
    if HAS_EXTRA:
        more = tl.load(extra + m * K + e, mask=ok, other=0.0)
        if HAS_EXTRA_GATE:
            more = more * sigmoid(tl.load(extra_gate + m))
        total += more
    return total

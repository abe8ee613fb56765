"""Vector functions on top of the emitter: rounding, half floats, exp and what follows from it."""

from __future__ import annotations

from collections.abc import Sequence

from .emit import Emitter
from .ir_types import F16, F32, I16, I32, Offset, Value, vector

# Adding and subtracting 1.5 * 2**23 rounds a float32 of magnitude below 2**22 to the nearest integer, ties to even.
_ROUNDING = 12582912.0
_LOG2_E = 1.4426950408889634
_LN2_HIGH, _LN2_LOW = 0.693145751953125, 1.428606765330187e-06
# Minimax polynomial of (exp(r) - 1 - r) / r**2 on |r| <= ln(2) / 2, highest power first (Cephes expf).
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)


def round_to_integer(e: Emitter, x: Value) -> Value:
    """Float32 lanes rounded to the nearest integer (ties to even), as int32; |x| must be below 2**22."""
    kind = vector(I32, x.type.count)
    return e.sub(e.bitcast(e.add(x, _ROUNDING), kind), e.bitcast(e.constant(x.type, _ROUNDING), kind))


def exp(e: Emitter, x: Value) -> Value:
    """e**x of float32 lanes, relative error about 1e-7; saturates at exp(-87.3) and exp(88.3), NaN stays NaN."""
    x = e.max(-87.3, x)
    x = e.min(88.3, x)
    shifted = e.add(e.mul(x, _LOG2_E), _ROUNDING)
    k = e.sub(shifted, _ROUNDING)
    r = e.fma(k, e.constant(x.type, -_LN2_HIGH), x)
    r = e.fma(k, e.constant(x.type, -_LN2_LOW), r)
    p = e.constant(x.type, _EXP[0])
    for coefficient in _EXP[1:]:
        p = e.fma(p, r, e.constant(x.type, coefficient))
    y = e.add(e.fma(p, e.mul(r, r), r), 1.0)
    kind = vector(I32, x.type.count)
    power = e.sub(e.bitcast(shifted, kind), e.bitcast(e.constant(x.type, _ROUNDING), kind))
    exponent = e.shift_left(e.add(power, 127), 23)
    return e.mul(y, e.bitcast(exponent, x.type))


def sigmoid(e: Emitter, x: Value) -> Value:
    """1 / (1 + exp(-x)) of float32 lanes."""
    return e.div(1.0, e.add(exp(e, e.neg(x)), 1.0))


def tanh(e: Emitter, x: Value) -> Value:
    """tanh(x) = 1 - 2 / (1 + exp(2x)) of float32 lanes; absolute error about 1e-7."""
    return e.sub(1.0, e.div(2.0, e.add(exp(e, e.mul(x, 2.0)), 1.0)))


def half_to_float(e: Emitter, bits: Value) -> Value:
    """Float16 lanes (as int16 bits) to float32, exact, subnormals, infinities and NaN included."""
    lanes = bits.type.count
    if e.isa.half_conversion:
        return e.convert(e.bitcast(bits, vector(F16, lanes)), F32)
    kind = vector(I32, lanes)
    wide = e.convert(bits, I32, signed=False)
    magnitude = e.shift_left(e.bit_and(wide, 0x7FFF), 13)
    # Read with float32's bias the value is 2**112 too small; the multiplication also normalises subnormals.
    finite = e.bitcast(e.mul(e.bitcast(magnitude, vector(F32, lanes)), 2.0**112), kind)
    special = e.bit_or(magnitude, 0x7F800000)
    value = e.select(e.compare(">=", magnitude, 0x7C00 << 13), special, finite)
    sign = e.shift_left(e.bit_and(wide, 0x8000), 16)
    return e.bitcast(e.bit_or(value, sign), vector(F32, lanes))


def float_to_half(e: Emitter, x: Value) -> Value:
    """Float32 lanes to float16 bits (int16), rounded to nearest even, overflow to infinity."""
    lanes = x.type.count
    if e.isa.half_conversion:
        return e.bitcast(e.convert(x, F16), vector(I16, lanes))
    bits = e.bitcast(x, vector(I32, lanes))
    sign = e.bit_and(e.shift_right(bits, 16), 0x8000)
    magnitude = e.bit_and(bits, 0x7FFFFFFF)
    # Normal numbers: rebias the exponent and round the 13 bits that go, ties to even; a carry moves into the exponent.
    odd = e.bit_and(e.shift_right(magnitude, 13), 1)
    normal = e.shift_right(e.add(e.sub(magnitude, 112 << 23), e.add(odd, 0xFFF)), 13)
    normal = e.select(e.compare(">", normal, 0x7C00), 0x7C00, normal)
    # Subnormals: adding 0.5 puts the result, rounded by the hardware, into the low bits of the sum.
    sum_bits = e.bitcast(e.add(e.bitcast(magnitude, x.type), 0.5), bits.type)
    subnormal = e.sub(sum_bits, 0x3F000000)
    value = e.select(e.compare("<", magnitude, 113 << 23), subnormal, normal)
    value = e.select(e.compare(">", magnitude, 0x7F800000), 0x7E00, value)
    return e.convert(e.bit_or(value, sign), I16)


def load_half(e: Emitter, lanes: int, address: Value, *offsets: Offset) -> Value:
    """Load float16 lanes as float32."""
    return half_to_float(e, e.load(vector(I16, lanes), address, *offsets))


def load_bfloat(e: Emitter, lanes: int, address: Value, *offsets: Offset) -> Value:
    """Load bfloat16 lanes as float32."""
    wide = e.convert(e.load(vector(I16, lanes), address, *offsets), I32, signed=False)
    return e.bitcast(e.shift_left(wide, 16), vector(F32, lanes))


def lane_maxima(e: Emitter, vectors: Sequence[Value]) -> Value:
    """The largest lane of each of n vectors of 16 (n a power of two): lane 16 / n * i is the i-th one's."""
    size = 16
    while len(vectors) > 1:  # two vectors become one that has the folded lanes of both
        half, width = len(vectors) // 2, size // 2
        starts = [start for group in range(0, 16, size) for start in (group, 16 + group)]
        low, high = ([start + lane for start in starts for lane in range(k, k + width)] for k in (0, width))
        pairs = zip(vectors[:half], vectors[half:], strict=True)
        vectors = [e.max(e.shuffle(a, low, b), e.shuffle(a, high, b)) for a, b in pairs]
        size = width
    result = vectors[0]
    while size > 1:
        size //= 2
        result = e.max(result, e.shuffle(result, [lane ^ size for lane in range(16)]))
    return result

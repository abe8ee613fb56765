"""y = W x for one to four rows x: the products of decoding, bound by the memory that holds W.

A program makes R outputs with all of K inside it, spread over the threads; the first chunk of weights is requested
before the program waits for the kernel that makes x. A norm before the product costs no kernel: whoever made x stored
(residual * gain) and one partial sum of squares per program, and the result is divided by the root mean square here.
"""

import triton
import triton.language as tl

from .common import activate, gated, start_early, store_activation_part, tanh, wait_for_inputs
from .dense import dense_dot, load_dense
from .unpack import byte_words, load_unit, unit_dot_bytes, unit_dot_exact, unit_scales

PLAIN = tl.constexpr(0)  # y = W x, float32 in natural order
GATED = tl.constexpr(1)  # activation(A x) * (B x), as an activation row
ACTIVATED = tl.constexpr(2)  # activation(A x), as an activation row
RESIDUAL = tl.constexpr(3)  # h += W x; h * gain as an activation row, and its sum of squares


@triton.jit
def request(
    quants, high, scales, supers, row0, u0, KP: tl.constexpr, U: tl.constexpr, W: tl.constexpr, G: tl.constexpr,
    BITS: tl.constexpr, FORM: tl.constexpr,
):
    """Request the weights of units u0..u0+U of 4WG rows."""
    if BITS >= 16:
        return load_dense(quants, row0, u0, KP, U, W, G, BITS)
    else:
        return load_unit(quants, high, scales, supers, row0, u0, KP, U, W, G, BITS, FORM)


@triton.jit
def _add_chunk(
    sums, chunk, u0, x, x_facts, KP: tl.constexpr, M: tl.constexpr, U: tl.constexpr, W: tl.constexpr,
    G: tl.constexpr, BITS: tl.constexpr, FORM: tl.constexpr, BYTES: tl.constexpr,
):
    """Add the units from u0 of every row of x to `sums`, a tuple of M tiles [U, W, G, 4]."""
    u = u0 + tl.arange(0, U)
    result = ()
    if BITS >= 16:
        for m in tl.static_range(M):
            result = result + (sums[m] + dense_dot(chunk, x + m * KP, u, KP, U, W, G, BITS),)
        return result
    else:
        w, w2, bits, s0, s1, s2, s3 = chunk
        a0, a1, m0, m1 = unit_scales(s0, s1, s2, s3, u, FORM)
        if BYTES:
            low, high = byte_words(w, w2, bits, u, BITS)
            for m in tl.static_range(M):
                row = x + m * (KP // 4)
                part = unit_dot_bytes(
                    low, high, a0, a1, m0, m1, row, x_facts + m * (KP // 8), u, KP, U, W, G, BITS, FORM
                )
                result = result + (sums[m] + part,)
        else:
            for m in tl.static_range(M):
                part = unit_dot_exact(w, w2, bits, a0, a1, m0, m1, x + m * KP, u, KP, U, W, G, BITS, FORM)
                result = result + (sums[m] + part,)
        return result


@triton.jit
def finish_rows(
    quants, high, scales, supers, row0, first, x, x_facts, KP: tl.constexpr, M: tl.constexpr, U: tl.constexpr,
    W: tl.constexpr, G: tl.constexpr, BITS: tl.constexpr, FORM: tl.constexpr, BYTES: tl.constexpr,
):
    """M tiles [U, W, G, 4] of sums inside a thread, of 4WG rows; `first` is the first chunk, already requested."""
    sums = ()
    for m in tl.static_range(M):
        sums = sums + (tl.zeros([U, W, G, 4], tl.float32),)
    sums = _add_chunk(sums, first, 0, x, x_facts, KP, M, U, W, G, BITS, FORM, BYTES)
    UNITS: tl.constexpr = KP // (32 if BITS < 16 else (8 if BITS == 16 else 4))
    for u0 in tl.static_range(U, UNITS, U):
        chunk = request(quants, high, scales, supers, row0, u0, KP, U, W, G, BITS, FORM)
        sums = _add_chunk(sums, chunk, u0, x, x_facts, KP, M, U, W, G, BITS, FORM, BYTES)
    return sums


@triton.jit
def sum_threads(sums, COUNT: tl.constexpr, R: tl.constexpr):
    """COUNT vectors [R]: the tiles [U, W, G, 4] summed over all threads, in one pass through shared memory.

    The gather makes a result one value a lane, the same in every warp, so that what follows needs no barrier.
    """
    i = tl.arange(0, R)
    if COUNT == 1:
        total = tl.reshape(tl.sum(sums[0], 0), [R])
        return (tl.gather(total, i, 0),)
    elif COUNT == 2:
        total = tl.reshape(tl.sum(tl.join(sums[0], sums[1]), 0), [2 * R])
        return tl.gather(total, 2 * i, 0), tl.gather(total, 2 * i + 1, 0)
    elif COUNT == 4:
        pairs = tl.join(tl.join(sums[0], sums[2]), tl.join(sums[1], sums[3]))
        total = tl.reshape(tl.sum(pairs, 0), [4 * R])
        result = ()
        for m in tl.static_range(4):
            result = result + (tl.gather(total, 4 * i + m, 0),)
        return result
    else:
        tl.static_assert(COUNT == 8)
        low = tl.join(tl.join(sums[0], sums[4]), tl.join(sums[2], sums[6]))
        high = tl.join(tl.join(sums[1], sums[5]), tl.join(sums[3], sums[7]))
        total = tl.reshape(tl.sum(tl.join(low, high), 0), [8 * R])
        result = ()
        for m in tl.static_range(8):
            result = result + (tl.gather(total, 8 * i + m, 0),)
        return result


@triton.jit
def inverse_rms(square_sums, row, eps, PARTS: tl.constexpr, K: tl.constexpr):
    """1 / rms of a row whose producers stored PARTS partial sums of squares; always added in the same order."""
    i = tl.arange(0, 32)
    parts = tl.zeros([32], tl.float32)
    for start in tl.static_range(0, PARTS, 32):  # a warp's width at a time: the sum then needs no shared memory
        parts += tl.load(square_sums + row * PARTS + start + i, mask=start + i < PARTS, other=0.0)
    return 1.0 / tl.sqrt(tl.sum(parts, 0) / K + eps)


@triton.jit
def outputs_of(
    pid, programs,
    quants, high, scales, supers, quants_b, high_b, scales_b, supers_b, x, x_facts, square_sums, eps, y, bias,
    bias_b, residual, gain, square_sums_out, factor, planes, o_quants, o_facts, natural, short,
    N: tl.constexpr, K: tl.constexpr, KP: tl.constexpr, M: tl.constexpr, U: tl.constexpr, W: tl.constexpr,
    G: tl.constexpr, BITS: tl.constexpr, FORM: tl.constexpr, BYTES: tl.constexpr, END: tl.constexpr,
    HAS_BIAS: tl.constexpr, ACTIVATION: tl.constexpr, NORM_PARTS: tl.constexpr, STRIDE: tl.constexpr,
    OUT_KP: tl.constexpr, FORMATS: tl.constexpr, SHORT_SCALE: tl.constexpr, SOFTCAP: tl.constexpr, PDL: tl.constexpr,
):
    """What program `pid` of `programs` makes of a `gemv`."""
    R: tl.constexpr = 4 * W * G
    row0 = pid * R
    first = request(quants, high, scales, supers, row0, 0, KP, U, W, G, BITS, FORM)
    if END == GATED:
        first_b = request(quants_b, high_b, scales_b, supers_b, row0, 0, KP, U, W, G, BITS, FORM)
    wait_for_inputs(PDL)
    e = row0 + tl.arange(0, R)
    ok = e < N
    if END == RESIDUAL:  # before the sums, whose barriers part all reads from the first write
        gains = tl.load(gain + e, mask=ok, other=0.0)
        before = ()
        for m in tl.static_range(M):
            before = before + (tl.load(residual + m * N + e, mask=ok, other=0.0),)
    inverses = ()
    if NORM_PARTS and M > 1:  # under way beside the first rows; one row has no registers to spare for it
        for m in tl.static_range(M):
            inverses = inverses + (inverse_rms(square_sums, m, eps, NORM_PARTS, K),)
    rows = finish_rows(quants, high, scales, supers, row0, first, x, x_facts, KP, M, U, W, G, BITS, FORM, BYTES)
    if END == GATED:
        rows = rows + finish_rows(
            quants_b, high_b, scales_b, supers_b, row0, first_b, x, x_facts, KP, M, U, W, G, BITS, FORM, BYTES
        )
        rows = sum_threads(rows, 2 * M, R)
    else:
        rows = sum_threads(rows, M, R)
    if HAS_BIAS:
        shift = tl.load(bias + e, mask=ok, other=0.0)
        if END == GATED:
            shift_b = tl.load(bias_b + e, mask=ok, other=0.0)
    for m in tl.static_range(M):
        o = rows[m]
        if NORM_PARTS:
            if M > 1:
                inverse = inverses[m]
            else:
                inverse = inverse_rms(square_sums, 0, eps, NORM_PARTS, K)
            o = o * inverse
        if HAS_BIAS:
            o = o + shift
        if END == PLAIN:
            o = o * factor
            if SOFTCAP > 0.0:
                o = SOFTCAP * tanh(o / SOFTCAP)
            tl.store(y + m * STRIDE + e, o, mask=ok)
        else:
            if END == GATED:
                b = rows[M + m]
                if NORM_PARTS:
                    b = b * inverse
                if HAS_BIAS:
                    b = b + shift_b
                o = gated(o, b, ACTIVATION)
            elif END == ACTIVATED:
                o = activate(o, ACTIVATION)
            else:
                o = o * factor + before[m]
                tl.store(residual + m * N + e, o, mask=ok)
                tl.store(square_sums_out + m * programs + pid, tl.sum(tl.where(ok, o * o, 0.0), 0))
                o = o * gains
            o = tl.where(ok, o, 0.0)
            store_activation_part(
                planes, o_quants, o_facts, natural, short, m, e, o, e < OUT_KP, OUT_KP, FORMATS, SHORT_SCALE
            )


@triton.jit
def gemv(
    quants, high, scales, supers, quants_b, high_b, scales_b, supers_b, x, x_facts, square_sums, eps, y, bias,
    bias_b, residual, gain, square_sums_out, factor, planes, o_quants, o_facts, natural, short,
    N: tl.constexpr, K: tl.constexpr, KP: tl.constexpr, M: tl.constexpr, U: tl.constexpr, W: tl.constexpr,
    G: tl.constexpr, BITS: tl.constexpr, FORM: tl.constexpr, BYTES: tl.constexpr, END: tl.constexpr,
    HAS_BIAS: tl.constexpr, ACTIVATION: tl.constexpr, NORM_PARTS: tl.constexpr, STRIDE: tl.constexpr,
    OUT_KP: tl.constexpr, FORMATS: tl.constexpr, SHORT_SCALE: tl.constexpr, SOFTCAP: tl.constexpr, PDL: tl.constexpr,
):
    """M <= 4 rows through one packed matrix (two for GATED), with everything that follows a product fused.

    PLAIN writes y [M, STRIDE] = softcap(factor * (W x + bias)). RESIDUAL adds factor * (W x + bias) to
    `residual` [M, N] and stores one sum of squares a program in `square_sums_out` [M, programs].
    """
    start_early(PDL)
    outputs_of(
        tl.program_id(0), tl.num_programs(0), quants, high, scales, supers, quants_b, high_b, scales_b,
        supers_b, x, x_facts, square_sums, eps, y, bias, bias_b, residual, gain, square_sums_out, factor,
        planes, o_quants, o_facts, natural, short, N, K, KP, M, U, W, G, BITS, FORM, BYTES, END, HAS_BIAS,
        ACTIVATION, NORM_PARTS, STRIDE, OUT_KP, FORMATS, SHORT_SCALE, SOFTCAP, PDL,
    )

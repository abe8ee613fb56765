"""One launch for two matrices of one input that are packed differently, such as queries and keys beside values."""

import triton
import triton.language as tl

from .common import start_early, wait_for_inputs
from .gemv import finish_rows, inverse_rms, request, sum_threads


@triton.jit
def _segment(
    quants, high, scales, supers, row0, x, x_facts, square_sums, eps, y, bias, N: tl.constexpr,
    K: tl.constexpr, KP: tl.constexpr, M: tl.constexpr, U: tl.constexpr, W: tl.constexpr, G: tl.constexpr,
    BITS: tl.constexpr, FORM: tl.constexpr, BYTES: tl.constexpr, HAS_BIAS: tl.constexpr, NORM_PARTS: tl.constexpr,
    STRIDE: tl.constexpr, PDL: tl.constexpr,
):
    """Rows row0.. of one matrix into y [M, STRIDE]."""
    R: tl.constexpr = 4 * W * G
    first = request(quants, high, scales, supers, row0, 0, KP, U, W, G, BITS, FORM)
    wait_for_inputs(PDL)
    rows = finish_rows(
        quants, high, scales, supers, row0, first, x, x_facts, KP, M, U, W, G, BITS, FORM, BYTES
    )
    rows = sum_threads(rows, M, R)
    e = row0 + tl.arange(0, R)
    for m in tl.static_range(M):
        o = rows[m]
        if NORM_PARTS:
            o = o * inverse_rms(square_sums, m, eps, NORM_PARTS, K)
        if HAS_BIAS:
            o = o + tl.load(bias + e, mask=e < N, other=0.0)
        tl.store(y + m * STRIDE + e, o, mask=e < N)


@triton.jit
def gemv_two(
    quants, high, scales, supers, quants_b, high_b, scales_b, supers_b, x, x_facts, square_sums, eps, y, bias,
    N: tl.constexpr, N_B: tl.constexpr, K: tl.constexpr, KP: tl.constexpr, M: tl.constexpr, U: tl.constexpr,
    W: tl.constexpr, G: tl.constexpr, BITS: tl.constexpr, FORM: tl.constexpr, BITS_B: tl.constexpr,
    FORM_B: tl.constexpr, BYTES: tl.constexpr, HAS_BIAS: tl.constexpr, NORM_PARTS: tl.constexpr,
    STRIDE: tl.constexpr, PROGRAMS: tl.constexpr, PDL: tl.constexpr,
):
    """y [M, STRIDE] = (x A^T, x B^T) + bias; the first PROGRAMS programs read A. As `gemv.gemv` without an end."""
    start_early(PDL)
    R: tl.constexpr = 4 * W * G
    pid = tl.program_id(0)
    if pid < PROGRAMS:
        _segment(
            quants, high, scales, supers, pid * R, x, x_facts, square_sums, eps, y, bias, N, K, KP, M, U, W, G,
            BITS, FORM, BYTES, HAS_BIAS, NORM_PARTS, STRIDE, PDL,
        )
    else:
        _segment(
            quants_b, high_b, scales_b, supers_b, (pid - PROGRAMS) * R, x, x_facts, square_sums, eps, y + N,
            bias + N, N_B, K, KP, M, U, W, G, BITS_B, FORM_B, BYTES, HAS_BIAS, NORM_PARTS, STRIDE, PDL,
        )

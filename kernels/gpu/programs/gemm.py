"""y = x W^T for more rows, on tensor cores, with the weights dequantised in registers.

Weights are the first operand (their rows are the rows of the product), tokens the second one, so that a batch of 8
wastes nothing. A reduction may be split over programs (`SPLITS`); the parts are added by whoever reads them, in order.
"""

import triton
import triton.language as tl

from .common import activate, gated, start_early, store_short, wait_for_inputs
from .tiles import tile_weights

PLAIN = tl.constexpr(0)  # y float32 [SPLITS, M, N]
GATED = tl.constexpr(1)  # activation(x A^T) * (x B^T), as a SHORT activation
ACTIVATED = tl.constexpr(2)  # activation(x A^T), as a SHORT activation


@triton.jit
def _inputs(at, x_ok, k, p0, KP: tl.constexpr, PB: tl.constexpr):
    """Both halves of PB pairs of blocks of x, [PB * 32, BM] each."""
    if (KP // 64) % PB == 0:
        ok = x_ok[None, :]
    else:
        ok = x_ok[None, :] & (p0 + k // 32 < KP // 64)[:, None]
    return tl.load(at + p0 * 64, mask=ok, other=0.0), tl.load(at + p0 * 64 + 32, mask=ok, other=0.0)


@triton.jit
def _product(
    quants, high, scales, supers, x, row, x_row, x_ok, first, last, KP: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, PB: tl.constexpr, BITS: tl.constexpr, FORM: tl.constexpr, TYPE: tl.constexpr,
):
    """[BN, BM] sums over the pairs first..last."""
    k = tl.arange(0, PB * 32)
    acc = tl.zeros([BN, BM], tl.float32)
    at = x + x_row[None, :] * KP + (k // 32 * 64 + k % 32)[:, None]
    for p0 in range(first, last, PB):
        low, far = tile_weights(quants, high, scales, supers, row, p0, KP, BN, PB, BITS, FORM, TYPE)
        x0, x1 = _inputs(at, x_ok, k, p0, KP, PB)
        acc = tl.dot(low, x0, acc, input_precision="ieee")
        acc = tl.dot(far, x1, acc, input_precision="ieee")
    return acc


@triton.jit
def _two_products(
    quants, high, scales, supers, quants_b, high_b, scales_b, supers_b, x, row, x_row, x_ok, KP: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, PB: tl.constexpr, BITS: tl.constexpr, FORM: tl.constexpr, TYPE: tl.constexpr,
):
    """[BN, BM] sums of two matrices over all pairs, in one loop: more is under way at a time."""
    k = tl.arange(0, PB * 32)
    acc = tl.zeros([BN, BM], tl.float32)
    acc_b = tl.zeros([BN, BM], tl.float32)
    at = x + x_row[None, :] * KP + (k // 32 * 64 + k % 32)[:, None]
    for p0 in range(0, KP // 64, PB):
        low, far = tile_weights(quants, high, scales, supers, row, p0, KP, BN, PB, BITS, FORM, TYPE)
        low_b, far_b = tile_weights(quants_b, high_b, scales_b, supers_b, row, p0, KP, BN, PB, BITS, FORM, TYPE)
        x0, x1 = _inputs(at, x_ok, k, p0, KP, PB)
        acc = tl.dot(low, x0, acc, input_precision="ieee")
        acc_b = tl.dot(low_b, x0, acc_b, input_precision="ieee")
        acc = tl.dot(far, x1, acc, input_precision="ieee")
        acc_b = tl.dot(far_b, x1, acc_b, input_precision="ieee")
    return acc, acc_b


@triton.jit
def gemm(
    quants, high, scales, supers, quants_b, high_b, scales_b, supers_b, x, y, bias, bias_b, M, slots, experts, factor,
    N: tl.constexpr, KP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PB: tl.constexpr, SPLITS: tl.constexpr,
    BITS: tl.constexpr, FORM: tl.constexpr, END: tl.constexpr, HAS_BIAS: tl.constexpr, ACTIVATION: tl.constexpr,
    STRIDE: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, TOP_K: tl.constexpr,
    PDL: tl.constexpr,
):
    """Rows of x [M, KP] through one matrix (two for GATED); `factor` multiplies the sums, then the bias is added.

    With TOP_K > 0 the matrix is a stack of experts of ROWS padded rows each: `slots` lists (token * TOP_K + rank)
    sorted by expert in tiles of BM, -1 where a tile is not full, and `experts` the expert of each tile,
    -1 for none. TOP_K = 1 reads x by slot, more reads it by token. Output rows are slots.
    """
    start_early(PDL)
    wait_for_inputs(PDL)
    pid = tl.program_id(0)
    split = tl.program_id(1)
    tiles_m, tiles_n = tl.num_programs(0) // tl.cdiv(N, BN), tl.cdiv(N, BN)
    width = GROUP * tiles_m  # GROUP tiles of weights share the tiles of tokens in the cache
    first_n = pid // width * GROUP
    size = tl.minimum(tiles_n - first_n, GROUP)
    pn = first_n + pid % width % size
    pm = pid % width // size
    rm = pm * BM + tl.arange(0, BM)
    if TOP_K:
        expert = tl.load(experts + pm)
        if expert < 0:
            return
        out_row = tl.load(slots + rm)
        ok = out_row >= 0
        x_row = tl.maximum(out_row, 0) // TOP_K
        skip = expert.to(tl.int64) * ROWS
        if HAS_BIAS:
            bias += expert * N
            bias_b += expert * N
    else:
        out_row, x_row, ok = rm, tl.minimum(rm, M - 1), rm < M
        skip = 0
    TYPE: tl.constexpr = x.dtype.element_ty
    n = pn * BN + tl.arange(0, BN)
    row = tl.minimum(n, ROWS - 1) + skip
    PAIRS: tl.constexpr = KP // 64
    CHUNK: tl.constexpr = tl.cdiv(tl.cdiv(PAIRS, SPLITS), PB) * PB
    first = split * CHUNK
    last = tl.minimum(first + CHUNK, PAIRS)
    if END == GATED:
        o, u = _two_products(
            quants, high, scales, supers, quants_b, high_b, scales_b, supers_b, x, row, x_row, ok, KP, BM, BN, PB,
            BITS, FORM, TYPE,
        )
        u = u * factor
    else:
        o = _product(
            quants, high, scales, supers, x, row, x_row, ok, first, last, KP, BM, BN, PB, BITS, FORM, TYPE
        )
    o = o * factor
    mask = (n < N)[:, None] & ok[None, :]
    if HAS_BIAS:
        shift = tl.load(bias + n, mask=n < N, other=0.0)
        o += tl.where(split == 0, shift, 0.0)[:, None]
    if END == PLAIN:
        tl.store(y + split * (M * STRIDE) + out_row[None, :] * STRIDE + n[:, None], o, mask=mask)
    else:
        if END == GATED:
            if HAS_BIAS:
                u += tl.load(bias_b + n, mask=n < N, other=0.0)[:, None]
            o = gated(o, u, ACTIVATION)
        else:
            o = activate(o, ACTIVATION)
        store_short(y + out_row[None, :] * STRIDE + n[:, None], o, mask)


@triton.jit
def dequantise(
    quants, high, scales, supers, out, row0, KP: tl.constexpr, BN: tl.constexpr, PB: tl.constexpr, BITS: tl.constexpr,
    FORM: tl.constexpr,
):
    """out [rows, KP] = rows row0.. of a packed matrix, in the dtype of `out`: then any matrix product will do."""
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    p0 = tl.program_id(1) * PB
    low, far = tile_weights(quants, high, scales, supers, row0 + n, p0, KP, BN, PB, BITS, FORM, out.dtype.element_ty)
    k = tl.arange(0, PB * 32)
    p = p0 + k // 32
    at = out + n.to(tl.int64)[:, None] * KP + (p * 64 + k % 32)[None, :]
    ok = (p < KP // 64)[None, :]
    tl.store(at, low, mask=ok)
    tl.store(at + 32, far, mask=ok)


@triton.jit
def activate_sums(
    gate, up, out, bias, bias_b, part_step, COUNT: tl.constexpr, STRIDE: tl.constexpr, OUT_STRIDE: tl.constexpr,
    PARTS: tl.constexpr, GATED_PAIR: tl.constexpr, HAS_BIAS: tl.constexpr, ACTIVATION: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """out[:, :COUNT] = activation(gate) * up as a SHORT activation, for products that came in PARTS."""
    m = tl.program_id(0)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ok = n < COUNT
    v = tl.zeros([BLOCK], tl.float32)
    u = tl.zeros([BLOCK], tl.float32)
    for p in tl.static_range(PARTS):
        v += tl.load(gate + p * part_step + m * STRIDE + n, mask=ok, other=0.0)
        if GATED_PAIR:
            u += tl.load(up + p * part_step + m * STRIDE + n, mask=ok, other=0.0)
    if HAS_BIAS:
        v += tl.load(bias + n, mask=ok, other=0.0)
        if GATED_PAIR:
            u += tl.load(bias_b + n, mask=ok, other=0.0)
    if GATED_PAIR:
        v = gated(v, u, ACTIVATION)
    else:
        v = activate(v, ACTIVATION)
    store_short(out + m * OUT_STRIDE + n, v, ok)

"""Plain float weights in products of one or a few rows.

A unit is one 16-byte load: 8 float16 or bfloat16 columns, or 4 float32 ones. Tiles are [U, W, G, 4, columns], as in
`unpack`.
"""

import triton
import triton.language as tl


@triton.jit
def load_dense(
    weights, row0, u0, KP: tl.constexpr, U: tl.constexpr, W: tl.constexpr, G: tl.constexpr, BITS: tl.constexpr
):
    """Request units u0..u0+U of 4WG rows of weights [N, KP]."""
    V: tl.constexpr = 8 if BITS == 16 else 4
    u = u0 + tl.arange(0, U)
    group = tl.arange(0, W)[:, None] * G + tl.arange(0, G)[None, :]
    row = (group[:, :, None] * 4 + tl.arange(0, 4)[None, None, :])[None, :, :, :, None]
    at = weights + row0.to(tl.int64) * KP + row * KP
    at += (u * V)[:, None, None, None, None] + tl.arange(0, V)[None, None, None, None, :]
    at = tl.max_contiguous(at, (8, 4, 2, 1, 16))  # see unpack.py
    if (KP // V) % U != 0:
        return tl.load(at, mask=(u < KP // V)[:, None, None, None, None], other=0, eviction_policy="evict_first")
    else:
        return tl.load(at, eviction_policy="evict_first")


@triton.jit
def _four(x, at, u, ok, W: tl.constexpr, MASK: tl.constexpr):
    at = x + at[:, None, None] + tl.arange(0, 4)[None, None, :]
    at = tl.max_contiguous(tl.broadcast_to(at, [u.shape[0], W, 4]), (2, 1, 4))
    if MASK:
        return tl.load(at, mask=ok[:, None, None], other=0.0)
    else:
        return tl.load(at)


@triton.jit
def dense_dot(words, x, u, KP: tl.constexpr, U: tl.constexpr, W: tl.constexpr, G: tl.constexpr, BITS: tl.constexpr):
    """[U, W, G, 4] partial sums in float32; x is a row in natural order."""
    V: tl.constexpr = 8 if BITS == 16 else 4
    MASK: tl.constexpr = (KP // V) % U != 0
    ok = u < KP // V
    if V == 4:
        x0 = _four(x, u * 4, u, ok, W, MASK)
        return tl.sum(words.to(tl.float32) * x0[:, :, None, None, :], 4)
    else:
        x0, x1 = _four(x, u * 8, u, ok, W, MASK), _four(x, u * 8 + 4, u, ok, W, MASK)
        w0, w1 = tl.split(tl.permute(tl.reshape(words, [U, W, G, 4, 2, 4]), [0, 1, 2, 3, 5, 4]))
        return tl.sum(w0.to(tl.float32) * x0[:, :, None, None, :] + w1.to(tl.float32) * x1[:, :, None, None, :], 4)

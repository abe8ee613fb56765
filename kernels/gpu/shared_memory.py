"""How much shared memory a tile of a product needs, so that tiles are chosen which every card has room for.

A program may have 64 KiB on cards of compute capability 7.5, 99 on 8.6, 8.9 and 12.0, 163 on 8.0 and 227 on 9.0 (CUDA
C++ Programming Guide, technical specifications per compute capability). What Triton takes is read off compiled kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .families import Form

if TYPE_CHECKING:
    from .device import Gpu
    from .families import Family

SPARE = 1024  # sums over warps, and what else a program keeps there

_QUANT_BYTES = {4: 1, 5: 2, 6: 2, 8: 2, 16: 4, 32: 8}  # for a low and a high column together


def product_bytes(
    gpu: Gpu, family: Family, size: int, matrices: int, rows: int, outputs: int, pairs: int, stages: int
) -> int:
    """Bytes that `programs.gemm.gemm` needs: `size` bytes of a number of x, tiles of rows, outputs and column pairs.

    Copies for later steps of a loop lie there while the program computes, of inputs and of weights as they are stored;
    cards before Ampere have no such copies, and turn the sums around there.
    """
    columns = outputs * 32 * pairs
    inputs = 2 * 32 * pairs * rows * size
    words = {Form.NONE: 0, Form.HALF: 1, Form.GROUP: 8}.get(family.form, 2)
    stored = columns * _QUANT_BYTES[family.bits] + outputs * pairs * words * 4
    turned = 4 * columns if family.bits in (5, 6) else 0
    if gpu.old_tensor_cores:
        return max(inputs + matrices * stored + turned, 4 * rows * outputs)
    return max(1, stages - 1) * (inputs + matrices * stored) + turned

"""Products by the vendor's library: matrices are dequantised piece by piece, and the pieces multiplied."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .linear import GpuLinear, nonlinearity
from .programs import gemm as gemm_programs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from localllm.kernels.spec import Activation as Nonlinearity

    from .cublas import CublasLt
    from .device import Gpu
    from .matrix import PackedMatrix


class LibraryProducts:
    """Launches products of hundreds of rows.

    `scratch` holds dequantised weights and `products` float32 results that an activation follows, both flat.
    `workspace` is what cuBLASLt may use; without that library PyTorch multiplies, with memory of its own.
    """

    def __init__(
        self,
        gpu: Gpu,
        scratch: torch.Tensor,
        products: torch.Tensor,
        cublas: CublasLt | None = None,
        workspace: torch.Tensor | None = None,
    ) -> None:
        self.gpu = gpu
        self.products = products
        self._scratch = scratch
        self._cublas, self._workspace = cublas, workspace

    def _dense(
        self, matrix: PackedMatrix, first: int, rows: int, dtype: torch.dtype, out: torch.Tensor
    ) -> torch.Tensor:
        """Rows of a matrix as plain numbers [rows, KP], in `out` unless they are stored like that."""
        shape, width = matrix.shape, matrix.shape.padded_columns
        if shape.family.dense and matrix.numbers.dtype == dtype:
            return matrix.numbers.view(-1, width)[first : first + rows]
        found = out[: rows * width].view(rows, width)
        gemm_programs.dequantise[(-(-rows // 16), -(-width // 256))](
            *byte_pointers(matrix),
            found,
            first,
            KP=width,
            BN=16,
            PB=4,
            BITS=shape.family.bits,
            FORM=shape.family.form.value,
            **self.gpu.options(4),
        )
        return found

    def plain(self, linear: GpuLinear, x: torch.Tensor, rows: int, y: torch.Tensor, factor: float) -> None:
        """y [rows, linear.rows] = factor * (x W^T) + bias, in float32."""
        out = y[: rows * linear.rows].view(rows, linear.rows)
        start = 0
        for matrix in linear.matrices:
            step = max(16, self._scratch.numel() // matrix.shape.padded_columns // 16 * 16)
            for first in range(0, matrix.shape.rows, step):
                count = min(step, matrix.shape.rows - first)
                weights = self._dense(matrix, first, -(-count // 16) * 16, x.dtype, self._scratch)[:count]
                self._multiply(x[:rows], weights, out[:, start + first : start + first + count], factor)
            start += matrix.shape.rows
        if linear.bias is not None:
            out.add_(linear.bias)

    def activated(
        self, gate: GpuLinear | None, up: GpuLinear, x: torch.Tensor, rows: int, kind: Nonlinearity, out: torch.Tensor
    ) -> None:
        """Products first, in pieces that fit into the scratch memory, then the activation."""
        halves = 1 if gate is None else 2
        parts = [up] if gate is None else [gate, up]
        neurons, width = up.rows, up.matrices[0].shape.padded_columns
        step = min(self._scratch.numel() // (halves * width), self.products.numel() // (halves * rows)) // 16 * 16
        for first in range(0, neurons, step):
            count = min(step, neurons - first)
            padded = -(-count // 16) * 16
            y = self.products[: rows * halves * padded].view(rows, halves * padded)
            for half, part in enumerate(parts):
                space = self._scratch[half * padded * width :]
                weights = self._dense(part.matrices[0], first, padded, x.dtype, space)
                here = y[:, half * padded : (half + 1) * padded]
                self._multiply(x[:rows], weights, here)
            biases = [None if part.bias is None else part.bias[first:] for part in parts]
            place = out.view(-1)[first:]
            up_sums = None if gate is None else y[:, padded:]
            store_activated(self.gpu, y, up_sums, rows, 1, 0, count, y.shape[1], place, out.shape[1], kind, biases)

    def _multiply(self, x: torch.Tensor, weights: torch.Tensor, out: torch.Tensor, factor: float = 1.0) -> None:
        """out = factor * (x @ weights.T), float32, of float16 or bfloat16 numbers on a card; of any on the CPU."""
        if self._cublas is not None and self._workspace is not None and x.dtype != torch.float32:
            self._cublas.multiply(x, weights, out, factor, self._workspace)
            return
        if x.is_cuda and x.dtype != torch.float32:
            torch.mm(x, weights.t(), out_dtype=torch.float32, out=out)
        else:
            torch.mm(x.float(), weights.float().t(), out=out)
        if factor != 1.0:
            out.mul_(factor)


def store_activated(
    gpu: Gpu,
    gate: torch.Tensor,
    up: torch.Tensor | None,
    rows: int,
    parts: int,
    part_step: int,
    count: int,
    step: int,
    out: torch.Tensor,
    out_step: int,
    kind: Nonlinearity,
    biases: Sequence[torch.Tensor | None],
) -> None:
    """out = activation(gate + bias) * (up + bias) of `count` neurons, from sums in parts; rows are `step` apart."""
    first, last = (gpu.nothing if bias is None else bias for bias in (biases[0], biases[-1]))
    gemm_programs.activate_sums[(rows, -(-count // 1024))](
        gate,
        gpu.nothing if up is None else up,
        out,
        first,
        last,
        part_step,
        COUNT=count,
        STRIDE=step,
        OUT_STRIDE=out_step,
        PARTS=parts,
        GATED_PAIR=up is not None,
        HAS_BIAS=biases[0] is not None,
        ACTIVATION=nonlinearity(kind),
        BLOCK=1024,
        **gpu.options(4),
    )


def byte_pointers(matrix: PackedMatrix) -> tuple[torch.Tensor, ...]:
    """A matrix's arrays as the tile programs take them: quants and high bits by bytes."""
    quants = matrix.numbers if matrix.shape.family.dense else matrix.quants.view(torch.uint8)
    return quants, matrix.high.view(torch.uint8), matrix.scales, matrix.supers

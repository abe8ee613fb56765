"""Products of many rows: on tensor cores in our own kernel, or dequantised piece by piece for the vendor's library."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .activations import Format
from .fragment_products import FEW_ROWS
from .library_products import byte_pointers
from .linear import FRAGMENT_ROWS, MOST_SPLITS, GpuLinear, nonlinearity
from .programs import gemm as gemm_programs
from .shared_memory import product_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from localllm.kernels.spec import Activation as Nonlinearity

    from .activations import Activation
    from .device import Gpu
    from .fragment_products import FragmentProducts
    from .library_products import LibraryProducts
    from .matrix import PackedMatrix

LIBRARY_ROWS = 192  # from so many rows on, dequantising a matrix first costs less than doing it tile by tile
INNER_SCALE = 64.0  # a block's inner activations are stored divided by this: common.store_short


class MatrixProducts:
    """Launches products of many rows on one card; `fragments` (None: not wanted) takes what it can of up to 32."""

    def __init__(self, gpu: Gpu, library: LibraryProducts, fragments: FragmentProducts | None = None) -> None:
        self.gpu = gpu
        self._library = library
        self._fragments = fragments

    def all_formats(self, rows: int) -> Format:
        """The formats that products of this many rows may read, whatever the matrices."""
        fragments = self._fragments is not None and rows <= FRAGMENT_ROWS
        return Format.SHORT | Format.FRAGMENTS if fragments else Format.SHORT

    def formats(self, matrices: Iterable[PackedMatrix], rows: int) -> Format:
        """The formats that products of this many rows with these matrices read."""
        formats = Format.NONE
        for matrix in matrices:
            formats |= Format.SHORT if self._by_fragments(matrix, rows) is None else Format.FRAGMENTS
        return formats

    def _by_fragments(self, matrix: PackedMatrix, rows: int) -> FragmentProducts | None:
        few = self._fragments
        return few if few is not None and rows <= FRAGMENT_ROWS and few.takes(matrix) else None

    def _splits(self, matrix: PackedMatrix, rows: int, by_fragments: bool) -> int:
        few = self._by_fragments(matrix, rows) if by_fragments else None
        if few is not None:
            return few.splits(matrix, rows)
        return 1 if by_fragments and rows <= FEW_ROWS else self.splits(matrix, rows)

    def splits(self, matrix: PackedMatrix, rows: int) -> int:
        """Over how many programs a reduction in tiles is split, so that all processors have work."""
        if self.gpu.interpreted or rows > 64:
            return 1
        programs = -(-matrix.shape.rows // 64)
        pairs = matrix.shape.padded_columns // 64
        splits = 1
        while splits < MOST_SPLITS and programs * splits < 2 * self.gpu.processors and pairs // (2 * splits) >= 8:
            splits *= 2
        return splits

    def plain(
        self,
        linear: GpuLinear,
        x: Activation,
        rows: int,
        y: torch.Tensor,
        *,
        inner: Format = Format.NONE,
        splits: int | None = None,
    ) -> int:
        """y [parts, rows, linear.rows] = x W^T in parts that add up; the first has the bias. Returns parts.

        `splits` is how many parts there are, if not as many as keep the card busy. `inner`: x is a block's inner
        activation, which lies in that format divided by INNER_SCALE.
        """
        factor = INNER_SCALE if inner else 1.0
        have = inner or self.formats(linear.matrices, rows)
        if self._uses_library(x.short, rows):
            self._library.plain(linear, x.short, rows, y, factor)
            return 1
        by_fragments = bool(have & Format.FRAGMENTS)
        if splits is None:
            splits = min(self._splits(matrix, rows, by_fragments) for matrix in linear.matrices)
        start = 0
        for matrix in linear.matrices:
            bias = None if linear.bias is None else linear.bias[start:]
            few = self._by_fragments(matrix, rows) if by_fragments else None
            if few is not None:
                few.plain(matrix, x, rows, y[start:], linear.rows, factor, bias, splits)
            else:
                given: dict[str, Any] = {"stride": linear.rows, "bias": bias, "HAS_BIAS": bias is not None}
                end = gemm_programs.PLAIN.value
                self._tiled(matrix, matrix, x.short, rows, y[start:], splits, end, factor=factor, **given)
            start += matrix.shape.rows
        return splits

    def precise(self, linear: GpuLinear, x: torch.Tensor, rows: int, y: torch.Tensor) -> None:
        """y [rows, linear.rows] = x W^T + bias in float32, of a float32 matrix and float32 x [.., KP]."""
        matrix, bias = linear.matrices[0], linear.bias
        end = gemm_programs.PLAIN.value
        self._tiled(matrix, matrix, x, rows, y, 1, end, stride=linear.rows, bias=bias, HAS_BIAS=bias is not None)

    def activated(
        self,
        gate: GpuLinear | None,
        up: GpuLinear,
        x: Activation,
        rows: int,
        kind: Nonlinearity,
        out: Activation,
        formats: Format,
    ) -> Format:
        """out = activation(x gate^T) * (x up^T), or activation(x up^T), divided by INNER_SCALE.

        It is stored as one of `formats` or, where that cannot be, as SHORT; returns as what.
        """
        first = up if gate is None else gate
        one, other = first.matrices[0], up.matrices[0]
        few = self._by_fragments(one, rows) if one.shape == other.shape else None
        if few is not None:
            found = Format.SHORT if formats & Format.SHORT else Format.FRAGMENTS
            few.activated(gate, up, x, rows, kind, out, found)
            return found
        if self._uses_library(x.short, rows) or one.shape != other.shape:
            self._library.activated(gate, up, x.short, rows, kind, out.short)
            return Format.SHORT
        given: dict[str, Any] = {
            "stride": out.padded,
            "bias": first.bias,
            "bias_b": up.bias,
            "HAS_BIAS": up.bias is not None,
            "ACTIVATION": nonlinearity(kind),
        }
        end = gemm_programs.ACTIVATED.value if gate is None else gemm_programs.GATED.value
        self._tiled(one, other, x.short, rows, out.short, 1, end, **given)
        return Format.SHORT

    def expert_activated(
        self,
        gate: GpuLinear | None,
        up: GpuLinear,
        x: torch.Tensor,
        slots: torch.Tensor,
        experts: torch.Tensor,
        top_k: int,
        kind: Nonlinearity,
        out: Activation,
    ) -> None:
        """Inner activations of every (row, rank) slot through its expert; `slots` and `experts` as `gemm` says."""
        first = up if gate is None else gate
        self._tiled(
            first.matrices[0],
            up.matrices[0],
            x,
            len(experts) * self.expert_tile,
            out.short,
            1,
            gemm_programs.ACTIVATED.value if gate is None else gemm_programs.GATED.value,
            stride=out.padded,
            slots=slots,
            experts=experts,
            TOP_K=top_k,
            bias=first.bias,
            bias_b=up.bias,
            HAS_BIAS=up.bias is not None,
            ACTIVATION=nonlinearity(kind),
        )

    def expert_plain(
        self,
        linear: GpuLinear,
        x: torch.Tensor,
        slots: torch.Tensor,
        experts: torch.Tensor,
        y: torch.Tensor,
        factor: float,
    ) -> None:
        """y [slots, N] = factor * (x W_expert^T) + bias of every slot."""
        matrix = linear.matrices[0]
        self._tiled(
            matrix,
            matrix,
            x,
            len(experts) * self.expert_tile,
            y,
            1,
            gemm_programs.PLAIN.value,
            stride=linear.rows,
            factor=factor,
            slots=slots,
            experts=experts,
            TOP_K=1,
            bias=linear.bias,
            HAS_BIAS=linear.bias is not None,
        )

    @property
    def expert_tile(self) -> int:
        """Slots that a tile of one expert holds."""
        return 16

    def _tiled(
        self,
        matrix: PackedMatrix,
        second: PackedMatrix,
        x: torch.Tensor,
        rows: int,
        y: torch.Tensor,
        splits: int,
        end: int,
        *,
        stride: int,
        factor: float = 1.0,
        bias: torch.Tensor | None = None,
        bias_b: torch.Tensor | None = None,
        slots: torch.Tensor | None = None,
        experts: torch.Tensor | None = None,
        **constants: Any,
    ) -> None:
        shape, nothing = matrix.shape, self.gpu.nothing
        rows_a_tile, outputs, pairs, warps, stages = self._tile(matrix, rows, end, experts is not None, x.dtype)
        given = {"HAS_BIAS": False, "ACTIVATION": 0, "TOP_K": 0} | constants
        grid = (-(-rows // rows_a_tile) * -(-shape.rows // outputs), splits)
        gemm_programs.gemm[grid](
            *byte_pointers(matrix),
            *byte_pointers(second),
            x,
            y,
            nothing if bias is None else bias,
            nothing if bias_b is None else bias_b,
            rows,
            nothing if slots is None else slots,
            nothing if experts is None else experts,
            factor,
            N=shape.rows,
            KP=shape.padded_columns,
            BM=rows_a_tile,
            BN=outputs,
            PB=pairs,
            SPLITS=splits,
            BITS=shape.family.bits,
            FORM=shape.family.form.value,
            END=end,
            STRIDE=stride,
            GROUP=8,
            ROWS=shape.padded_rows,
            **given,
            **self.gpu.early(warps, stages),
        )

    def _tile(
        self, matrix: PackedMatrix, rows: int, end: int, expert: bool, dtype: torch.dtype
    ) -> tuple[int, int, int, int, int]:
        """(rows, outputs, pairs of columns) of a tile, warps and pipeline stages."""
        if self.gpu.interpreted:
            return (self.expert_tile if expert else 64 if rows > 16 else 16), 64, 2, 4, 1
        if dtype == torch.float32:
            return 16, 32, 1, 4, 2
        matrices = 2 if end == gemm_programs.GATED.value else 1
        if expert:
            rows, outputs, pairs, warps = self.expert_tile, 64, 2, 4
        elif rows <= 64:
            rows, outputs, pairs, warps = max(16, 1 << (rows - 1).bit_length()), 64, 4 if rows <= 32 else 2, 4
        else:
            rows, outputs, pairs, warps = 128, 128 // matrices, 1, 8
        stages, of = 3, (self.gpu, matrix.shape.family, dtype.itemsize, matrices, rows, outputs)
        while pairs > 1 and product_bytes(*of, pairs, stages) > self.gpu.shared_memory:
            pairs //= 2
        while stages > 1 and product_bytes(*of, pairs, stages) > self.gpu.shared_memory:
            stages -= 1
        return rows, outputs, pairs, warps, stages

    def _uses_library(self, x: torch.Tensor, rows: int) -> bool:
        return not self.gpu.interpreted and rows >= LIBRARY_ROWS and x.dtype != torch.float32

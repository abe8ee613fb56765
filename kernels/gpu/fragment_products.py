"""Products of up to 32 rows by tensor cores that read packed weights straight from memory: their launches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from localllm.kernels.spec import MixtureOfExperts

from .activations import Format
from .families import Form
from .linear import MOST_SPLITS, VECTOR_ROWS, GpuLinear, nonlinearity
from .programs import fragment_tiles
from .programs import fragments as programs

if TYPE_CHECKING:
    from localllm.kernels.spec import Activation as Nonlinearity
    from localllm.kernels.spec import ModelSpec

    from .activations import Activation
    from .device import Gpu
    from .matrix import PackedMatrix
    from .vector_products import VectorProducts


FEW_ROWS = 8  # up to so many rows what a warp waits for counts most, and it has one tile of weights


@dataclass(frozen=True, slots=True)
class WarpTiles:
    """How `fragment_tiles.more_rows` divides its work: its constants of these names."""

    tiles: int
    across: int
    ahead: int


class FragmentProducts:
    """Launches products of few rows with 4-bit weights on one card."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu

    def takes(self, matrix: PackedMatrix) -> bool:
        """Whether a matrix's packed form suits."""
        return matrix.shape.family.bits == 4 and matrix.shape.family.form is not Form.GROUP

    def tile(self, matrix: PackedMatrix, gated: bool) -> tuple[int, int]:
        """(warps side by side along K, chunks of 128 columns under way): few warps that look far ahead do best."""
        chunks = -(-matrix.shape.padded_columns // 128)
        wanted, ahead = (2, 2) if gated else (8, 4) if chunks > 64 else (4, 4)
        warps = 1
        while warps < wanted and 2 * warps <= chunks:
            warps *= 2
        return warps, min(-(-chunks // warps), ahead)

    def more_tiles(self, matrix: PackedMatrix, rows: int, gated: bool) -> WarpTiles:
        """How more than FEW_ROWS rows are divided: two tiles of 16 outputs a warp, of a gated pair one of each."""
        return WarpTiles(1 if gated else 2, 4, 2)

    def splits(self, matrix: PackedMatrix, rows: int) -> int:
        """Over how many programs a reduction is split, so that eight warps lie on every processor."""
        if rows <= FEW_ROWS or self.gpu.interpreted:
            return 1
        shape, tile = matrix.shape, self.more_tiles(matrix, rows, False)
        warps = -(-shape.rows // (16 * tile.tiles))
        chunks = -(-shape.padded_columns // 128)
        splits = 1
        while splits < MOST_SPLITS and 2 * splits * warps <= 9 * self.gpu.processors and chunks >= 8 * splits:
            splits *= 2
        return splits

    def _launch(
        self,
        matrix: PackedMatrix,
        second: PackedMatrix,
        x: Activation,
        rows: int,
        y: torch.Tensor,
        end: int,
        factor: float,
        bias: torch.Tensor | None,
        second_bias: torch.Tensor | None,
        stride: int,
        splits: int = 1,
        **constants: Any,
    ) -> None:
        shape, nothing = matrix.shape, self.gpu.nothing
        if rows <= FEW_ROWS:
            program: Any = programs.few_rows
            warps, ahead = self.tile(matrix, end == programs.GATED.value)
            grid: tuple[int, ...] = (-(-shape.rows // 16),)
            given = {"S": warps, "AHEAD": ahead}
        else:
            program = fragment_tiles.more_rows
            tile = self.more_tiles(matrix, rows, end == programs.GATED.value)
            warps = tile.across
            grid = (-(-shape.rows // (16 * tile.tiles * tile.across)), splits)
            given = {"TILES": tile.tiles, "ACROSS": tile.across, "AHEAD": tile.ahead, "SPLITS": splits}
            given["GROUPS"] = 2 if rows <= 16 else 4
        program[grid](
            matrix.quants,
            matrix.scales,
            matrix.supers,
            second.quants,
            second.scales,
            second.supers,
            x.fragments.view(torch.int32),
            y,
            nothing if bias is None else bias,
            nothing if second_bias is None else second_bias,
            rows,
            factor,
            N=shape.rows,
            KP=shape.padded_columns,
            ROWS=shape.padded_rows,
            FORM=shape.family.form.value,
            END=end,
            HAS_BIAS=bias is not None,
            STRIDE=stride,
            OLD=self.gpu.old_tensor_cores,
            **({"ACTIVATION": 0, "OUT_FRAGMENTS": False} | constants | given),
            **self.gpu.early(warps),
        )

    def plain(
        self,
        matrix: PackedMatrix,
        x: Activation,
        rows: int,
        y: torch.Tensor,
        stride: int,
        factor: float,
        bias: torch.Tensor | None,
        splits: int,
    ) -> None:
        """y [splits, rows, stride] = factor * (x W^T) + bias, in parts that add up; the first has the bias."""
        self._launch(matrix, matrix, x, rows, y, programs.PLAIN.value, factor, bias, None, stride, splits)

    def activated(
        self,
        gate: GpuLinear | None,
        up: GpuLinear,
        x: Activation,
        rows: int,
        kind: Nonlinearity,
        out: Activation,
        found: Format,
    ) -> None:
        """out = activation(gate x) * (up x), or activation(up x), in format `found`, scaled for tensor cores."""
        first = up if gate is None else gate
        end = programs.ACTIVATED.value if gate is None else programs.GATED.value
        self._launch(
            first.matrices[0],
            up.matrices[0],
            x,
            rows,
            out.fragments if found is Format.FRAGMENTS else out.short,
            end,
            1.0,
            first.bias,
            up.bias,
            out.padded,
            ACTIVATION=nonlinearity(kind),
            OUT_FRAGMENTS=found is Format.FRAGMENTS,
        )


def takes_fragments(gpu: Gpu, short: torch.dtype) -> bool:
    """Whether such products are possible: NVIDIA's tensor cores and float16 activations (or the interpreter)."""
    return short == torch.float16 and (gpu.interpreted or torch.version.hip is None)


def vector_rows(
    spec: ModelSpec, vectors: VectorProducts, fragments: FragmentProducts | None, *, halved: bool = False
) -> int:
    """Up to how many rows a model goes through the gemv: there each row costs more, but what follows is fused.

    Exact products of three and four rows cost more than tensor cores take for eight; a card that was asked for exact
    ones keeps them, one that has half of a model (`halved`) chose them because one row waits for the CPU anyway.
    """
    mixed = any(isinstance(layer.feed_forward, MixtureOfExperts) for layer in spec.layers)
    exact = vectors.arithmetic == "float32" and not halved
    return VECTOR_ROWS if fragments is None or exact or mixed else 2

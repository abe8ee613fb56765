"""Products of one to four rows: tile sizes and launches of the gemv."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import triton

from .activations import Activation, Format
from .families import Form
from .linear import GpuLinear, PendingNorm, nonlinearity
from .programs import gemv as gemv_programs
from .programs import gemv_meeting as meeting_programs
from .programs import gemv_two as two_programs

if TYPE_CHECKING:
    import torch

    from localllm.kernels.spec import Activation as Nonlinearity

    from .device import Arithmetic, Gpu
    from .matrix import PackedMatrix


_ONE_MATRIX = (gemv_programs.PLAIN.value, gemv_programs.RESIDUAL.value)


@dataclass(frozen=True, slots=True, eq=False)
class Beside:
    """What one program of a gemv does beside the others: rows to the CPU (`sends`), or from it (programs/meeting.py).

    `rows` of `width` values from `source` to `target`, and of `gate_count` ones between `gates`, `gate_step` apart.
    """

    sends: bool
    rows: int
    width: int
    source: torch.Tensor
    target: torch.Tensor
    gates: torch.Tensor
    out_gates: torch.Tensor
    gate_count: int
    gate_step: int
    flag: torch.Tensor
    failed: torch.Tensor
    number: torch.Tensor
    stamp: torch.Tensor
    mark: int
    patience: int


@dataclass(frozen=True, slots=True)
class Tile:
    """The tile of a gemv: units of K a step, warps side by side over rows, row groups a thread."""

    units: int
    warps_over_rows: int
    groups: int

    @property
    def rows(self) -> int:
        """Outputs a program."""
        return 4 * self.warps_over_rows * self.groups

    @property
    def warps(self) -> int:
        """Warps a program."""
        return self.units * self.warps_over_rows // 32


class VectorProducts:
    """Launches products of few rows on one card. Buffers must hold VECTOR_ROWS rows, however few are computed."""

    def __init__(self, gpu: Gpu, arithmetic: Arithmetic) -> None:
        self.gpu = gpu
        self.arithmetic = arithmetic

    @property
    def all_formats(self) -> Format:
        """The formats that products may read, whatever the matrix."""
        return Format.NATURAL | (Format.BYTES if self.arithmetic == "int8" else Format.PLANES)

    def formats(self, *matrices: PackedMatrix) -> Format:
        """The formats that a gemv with these matrices reads."""
        formats = Format.NONE
        for matrix in matrices:
            if matrix.shape.family.dense:
                formats |= Format.NATURAL
            else:
                formats |= Format.BYTES if self.arithmetic == "int8" else Format.PLANES
        return formats

    def inputs(self, matrix: PackedMatrix, x: Activation) -> tuple[torch.Tensor, torch.Tensor]:
        """A gemv's x and x_facts."""
        nothing = self.gpu.nothing
        if matrix.shape.family.dense:
            return x.natural, nothing
        if self.arithmetic == "int8":
            return x.words, x.facts
        return x.planes, nothing

    def tile(self, matrix: PackedMatrix, rows: int, end: int, formats: Format = Format.NONE) -> Tile:
        """Tile sizes of a gemv. A program that stores BYTES must make 16 outputs."""
        family = matrix.shape.family
        width = 32 if not family.dense else 8 if family.bits == 16 else 4
        units = matrix.shape.padded_columns // width
        step = 32
        while step < min(units, 128):
            step *= 2
        whole = bool(formats & Format.BYTES)
        if self.gpu.interpreted:
            return Tile(step, 1, 4)
        if family.dense and whole:
            return Tile(step, 1, 4)
        if self.arithmetic == "float32" or family.dense:
            return Tile(step, 1, 2 if family.bits < 16 and end == gemv_programs.PLAIN.value else 1)
        if rows == 2 and family.bits == 4 and family.form is Form.HALF and end in _ONE_MATRIX:
            return Tile(min(step, 64), 2, 2)  # all programs lie on the card at once
        if rows > 1 and units > 128:  # a long row in few steps: they are unrolled, and compiling takes its time
            return Tile(step, 4, 1) if whole else Tile(step, 2, 1)
        if rows > 1:
            return Tile(32, 4, 1) if whole and rows == 2 else Tile(32, 2, 2) if whole else Tile(32, 2, 1)
        if end == gemv_programs.RESIDUAL.value:
            return Tile(step, 1, 4) if units <= 128 else Tile(step, 2, 2)
        if whole:  # one warp with all 16 rows where its registers suffice
            return Tile(32, 1, 4) if family.bits == 4 and family.form is Form.HALF else Tile(32, 2, 2)
        return Tile(step, 1, 2)

    def _launch(
        self,
        matrix: PackedMatrix,
        second: PackedMatrix | None,
        x: Activation,
        rows: int,
        end: int,
        tile: Tile,
        norm: PendingNorm | None,
        out: Activation | None = None,
        formats: Format = Format.NONE,
        beside: Beside | None = None,
        **given: Any,
    ) -> None:
        gpu, shape = self.gpu, matrix.shape
        other = second or matrix
        nothing = gpu.nothing
        count = 1 if rows == 1 else 2 if rows == 2 else 4
        arguments = {
            "y": nothing,
            "bias": nothing,
            "bias_b": nothing,
            "residual": nothing,
            "gain": nothing,
            "square_sums_out": nothing,
            "factor": 1.0,
            "HAS_BIAS": False,
            "ACTIVATION": 0,
            "STRIDE": 0,
            "SOFTCAP": 0.0,
        } | given
        outputs = out.pointers if out is not None else (nothing,) * 5
        kernel, programs = gemv_programs.gemv, -(-shape.rows // tile.rows)
        meets: tuple[Any, ...] = ()
        facts: dict[str, Any] = {}
        if beside is not None:
            kernel, programs = meeting_programs.gemv_meeting, programs + 1
            meets, facts = _meeting_arguments(beside, tile)
        kernel[(programs,)](
            matrix.numbers,
            matrix.high,
            matrix.scales,
            matrix.supers,
            other.numbers,
            other.high,
            other.scales,
            other.supers,
            *self.inputs(matrix, x),
            nothing if norm is None else norm.square_sums,
            0.0 if norm is None else norm.eps,
            arguments.pop("y"),
            arguments.pop("bias"),
            arguments.pop("bias_b"),
            arguments.pop("residual"),
            arguments.pop("gain"),
            arguments.pop("square_sums_out"),
            arguments.pop("factor"),
            *outputs,
            *meets,
            N=shape.rows,
            K=shape.columns,
            KP=shape.padded_columns,
            M=count,
            U=tile.units,
            W=tile.warps_over_rows,
            G=tile.groups,
            BITS=shape.family.bits,
            FORM=shape.family.form.value,
            BYTES=self.arithmetic == "int8" and not shape.family.dense,
            END=end,
            NORM_PARTS=0 if norm is None else norm.parts,
            OUT_KP=0 if out is None else out.padded,
            FORMATS=int(formats),
            SHORT_SCALE=1.0,
            **facts,
            **arguments,
            **gpu.early(tile.warps),
        )

    def plain(
        self,
        linear: GpuLinear,
        x: Activation,
        rows: int,
        y: torch.Tensor,
        stride: int,
        norm: PendingNorm | None = None,
        factor: float = 1.0,
        softcap: float | None = None,
        beside: Beside | None = None,
    ) -> None:
        """y [rows, stride] = softcap(factor * (x W^T + bias)); `beside` of the first matrix of it."""
        whole = factor == 1.0 and softcap is None
        if (
            beside is None
            and whole
            and len(linear.matrices) == 2
            and not any(m.shape.family.dense for m in linear.matrices)
        ):
            self._two(linear, x, rows, y, stride, norm)
            return
        start = 0
        for matrix in linear.matrices:
            bias = self.gpu.nothing if linear.bias is None else linear.bias[start:]
            tile = self.tile(matrix, rows, gemv_programs.PLAIN.value)
            self._launch(
                matrix,
                None,
                x,
                rows,
                gemv_programs.PLAIN.value,
                tile,
                norm,
                y=y[start:],
                bias=bias,
                HAS_BIAS=linear.bias is not None,
                STRIDE=stride,
                factor=factor,
                SOFTCAP=softcap or 0.0,
                beside=None if start else beside,
            )
            start += matrix.shape.rows

    def _two(
        self, linear: GpuLinear, x: Activation, rows: int, y: torch.Tensor, stride: int, norm: PendingNorm | None
    ) -> None:
        """`plain` for two matrices that are packed differently, in one launch."""
        one, two = linear.matrices
        tile = self.tile(two, rows, gemv_programs.PLAIN.value)
        nothing = self.gpu.nothing
        programs = -(-one.shape.rows // tile.rows)
        two_programs.gemv_two[(programs + -(-two.shape.rows // tile.rows),)](
            one.numbers,
            one.high,
            one.scales,
            one.supers,
            two.numbers,
            two.high,
            two.scales,
            two.supers,
            *self.inputs(one, x),
            nothing if norm is None else norm.square_sums,
            0.0 if norm is None else norm.eps,
            y,
            nothing if linear.bias is None else linear.bias,
            N=one.shape.rows,
            N_B=two.shape.rows,
            K=one.shape.columns,
            KP=one.shape.padded_columns,
            M=1 if rows == 1 else 2 if rows == 2 else 4,
            U=tile.units,
            W=tile.warps_over_rows,
            G=tile.groups,
            BITS=one.shape.family.bits,
            FORM=one.shape.family.form.value,
            BITS_B=two.shape.family.bits,
            FORM_B=two.shape.family.form.value,
            BYTES=self.arithmetic == "int8",
            HAS_BIAS=linear.bias is not None,
            NORM_PARTS=0 if norm is None else norm.parts,
            STRIDE=stride,
            PROGRAMS=programs,
            **self.gpu.early(tile.warps),
        )

    def activated(
        self,
        gate: GpuLinear | None,
        up: GpuLinear,
        x: Activation,
        rows: int,
        kind: Nonlinearity,
        out: Activation,
        formats: Format,
        norm: PendingNorm | None,
        beside: Beside | None = None,
    ) -> None:
        """out = activation(gate x) * (up x), or activation(up x)."""
        first = up if gate is None else gate
        end = gemv_programs.ACTIVATED.value if gate is None else gemv_programs.GATED.value
        nothing = self.gpu.nothing
        self._launch(
            first.matrices[0],
            up.matrices[0],
            x,
            rows,
            end,
            self.tile(first.matrices[0], rows, end, formats),
            norm,
            out,
            formats,
            bias=nothing if first.bias is None else first.bias,
            bias_b=nothing if up.bias is None else up.bias,
            HAS_BIAS=up.bias is not None,
            ACTIVATION=nonlinearity(kind),
            beside=beside,
        )

    def residual(
        self,
        linear: GpuLinear,
        x: Activation,
        rows: int,
        residual: torch.Tensor,
        factor: float,
        gain: torch.Tensor,
        square_sums: torch.Tensor,
        out: Activation,
        formats: Format,
    ) -> int:
        """residual += factor * (x W^T + bias); out = residual * gain; returns the number of square sums a row."""
        matrix = linear.matrices[0]
        end = gemv_programs.RESIDUAL.value
        tile = self.tile(matrix, rows, end, formats)
        self._launch(
            matrix,
            None,
            x,
            rows,
            end,
            tile,
            None,
            out,
            formats,
            residual=residual,
            factor=factor,
            gain=gain,
            square_sums_out=square_sums,
            bias=self.gpu.nothing if linear.bias is None else linear.bias,
            HAS_BIAS=linear.bias is not None,
        )
        return -(-matrix.shape.rows // tile.rows)

    def expert_tile(self, matrix: PackedMatrix, formats: Format) -> Tile:
        """Tile sizes of a gemv through one expert."""
        end = gemv_programs.GATED.value if formats else gemv_programs.PLAIN.value
        return self.tile(matrix, 1, end, formats)


def _meeting_arguments(beside: Beside, tile: Tile) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What `gemv_meeting` takes beside the arguments of `gemv`."""
    meets = (
        beside.source,
        beside.target,
        beside.gates,
        beside.out_gates,
        beside.flag,
        beside.number,
        beside.stamp,
        beside.rows,
        beside.failed,
        beside.mark,
        beside.patience,
    )
    most = 2048 * tile.warps  # 64 values a thread on their way at once: a gemv has more registers than that
    block = min(most, triton.next_power_of_2(max(beside.width, beside.gate_count)))
    facts = {"SENDS": beside.sends, "WIDTH": beside.width, "GATES": beside.gate_count, "GATE_STEP": beside.gate_step}
    return meets, facts | {"BLOCK": block}

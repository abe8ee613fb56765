"""Products of up to eight rows by tensor cores that read packed weights straight from memory: their launches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from localllm.kernels.spec import MixtureOfExperts

from .activations import Format
from .families import Form
from .linear import VECTOR_ROWS, GpuLinear, nonlinearity
from .programs import fragments as programs

if TYPE_CHECKING:
    from localllm.kernels.spec import Activation as Nonlinearity
    from localllm.kernels.spec import ModelSpec

    from .activations import Activation
    from .device import Gpu
    from .matrix import PackedMatrix
    from .vector_products import VectorProducts


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
        **constants: Any,
    ) -> None:
        shape, nothing = matrix.shape, self.gpu.nothing
        warps, ahead = self.tile(matrix, end == programs.GATED.value)
        programs.few_rows[(-(-shape.rows // 16),)](
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
            S=warps,
            AHEAD=ahead,
            FORM=shape.family.form.value,
            END=end,
            HAS_BIAS=bias is not None,
            STRIDE=stride,
            OLD=self.gpu.old_tensor_cores,
            **({"ACTIVATION": 0, "OUT_FRAGMENTS": False} | constants),
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
    ) -> None:
        """y [rows, stride] = factor * (x W^T) + bias."""
        self._launch(matrix, matrix, x, rows, y, programs.PLAIN.value, factor, bias, None, stride)

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


def vector_rows(spec: ModelSpec, vectors: VectorProducts, fragments: FragmentProducts | None) -> int:
    """Up to how many rows a model goes through the gemv: there each row costs more, but what follows is fused."""
    mixed = any(isinstance(layer.feed_forward, MixtureOfExperts) for layer in spec.layers)
    return VECTOR_ROWS if fragments is None or vectors.arithmetic == "float32" or mixed else 2

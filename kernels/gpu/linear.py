"""What a product is made of, for every kernel that computes one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from localllm.kernels.spec import Activation as Nonlinearity

    from .matrix import PackedMatrix

VECTOR_ROWS = 4  # the gemv takes no more rows than that
FRAGMENT_ROWS = 32  # nor tensor cores that read packed weights straight from memory more than these
MOST_SPLITS = 8  # programs along one reduction

_KINDS = ("silu", "gelu", "gelu_tanh", "relu", "relu2", "relu_both", "swiglu_clamped")  # programs/common.py's numbers


def nonlinearity(kind: Nonlinearity) -> int:
    """A nonlinearity's number in the programs."""
    return _KINDS.index(kind.value)


@dataclass(frozen=True, slots=True, eq=False)
class GpuLinear:
    """A product with one or more packed matrices, one below the other, and a float32 bias over all their rows."""

    matrices: tuple[PackedMatrix, ...]
    bias: torch.Tensor | None = None

    @property
    def rows(self) -> int:
        """Outputs."""
        return sum(matrix.shape.rows for matrix in self.matrices)

    @property
    def columns(self) -> int:
        """Inputs."""
        return self.matrices[0].shape.columns


def packed_alike(one: GpuLinear | None, other: GpuLinear) -> bool:
    """Whether one kernel can read both: gates (None: there are none) and ups."""
    return one is None or one.matrices[0].shape == other.matrices[0].shape


@dataclass(frozen=True, slots=True, eq=False)
class PendingNorm:
    """An RMS norm that the next product finishes: partial sums of squares [rows, parts]."""

    square_sums: torch.Tensor
    parts: int
    eps: float

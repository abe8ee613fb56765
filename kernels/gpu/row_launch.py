"""Launches of the row programs: sums, norms and residuals between products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import triton

from .programs import rows as row_programs

if TYPE_CHECKING:
    import torch

    from .activations import Activation, Format
    from .device import Gpu
    from .model import GpuNorm


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """What a block adds to the residual, not yet added: `count` partial results; of experts with a share each."""

    values: torch.Tensor
    count: int
    part_step: int
    row_step: int
    shares: torch.Tensor | None = None
    extra: torch.Tensor | None = None
    extra_gate: torch.Tensor | None = None


def store_rows(
    gpu: Gpu,
    values: torch.Tensor,
    norm: GpuNorm | None,
    formats: Format,
    out: Activation,
    *,
    rows: int | None = None,
    step: int | None = None,
    part: Part | None = None,
    scale: float = 1.0,
    post_norm: GpuNorm | None = None,
    gather: torch.Tensor | None = None,
) -> None:
    """out = norm(values) in `formats`, after values += scale * post_norm(part) if there is a part.

    `values` are `rows` float32 rows that are `step` apart (the output's width, if not given). With `gather` they are
    rows gather[0], gather[1], ... of it.
    """
    post, post_gain, post_bias, post_eps, post_facts = _norm_arguments(post_norm, gpu.nothing)
    kind, gain, bias, eps, facts = _norm_arguments(norm, gpu.nothing)
    given = part or Part(gpu.nothing, 0, 0, 0)
    width = out.padded
    row_programs.finish_rows[(len(values) if rows is None else rows,)](
        given.values,
        gpu.nothing if given.shares is None else given.shares,
        gpu.nothing if given.extra is None else given.extra,
        gpu.nothing if given.extra_gate is None else given.extra_gate,
        post_gain,
        post_bias,
        post_eps,
        values,
        scale,
        gain,
        bias,
        eps,
        gpu.nothing if gather is None else gather,
        *out.pointers,
        K=out.columns,
        KP=width,
        A=triton.next_power_of_2(width // 16),
        STEP=out.columns if step is None else step,
        PARTS=given.count,
        PART_STEP=given.part_step,
        ROW_STEP=given.row_step,
        HAS_SHARES=given.shares is not None,
        HAS_EXTRA=given.extra is not None,
        HAS_EXTRA_GATE=given.extra_gate is not None,
        POST=post,
        POST_GAIN=post_facts[0],
        POST_BIAS=post_facts[1],
        NORM=kind,
        HAS_GAIN=facts[0],
        NORM_BIAS=facts[1],
        GATHER=gather is not None,
        FORMATS=int(formats),
        **gpu.early(8 if width > 2048 else 4),
    )


def _norm_arguments(norm: GpuNorm | None, nothing: torch.Tensor) -> tuple[int, Any, Any, float, tuple[bool, bool]]:
    """A norm as the row programs take it: kind, gain, bias, eps, and which of the two exist."""
    if norm is None:
        return 0, nothing, nothing, 0.0, (False, False)
    kind = row_programs.LAYER.value if norm.source.subtract_mean else row_programs.RMS.value
    gain = nothing if norm.gain is None else norm.gain
    bias = nothing if norm.bias is None else norm.bias
    return kind, gain, bias, norm.source.eps, (norm.gain is not None, norm.bias is not None)

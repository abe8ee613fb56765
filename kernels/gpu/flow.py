"""The residual stream of a step, and the activation that the next product reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .activations import Activation, Format
from .linear import VECTOR_ROWS, GpuLinear, PendingNorm
from .row_launch import Part, store_rows

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

    from .device import Gpu
    from .matrix import PackedMatrix
    from .matrix_products import MatrixProducts
    from .model import GpuNorm
    from .vector_products import Beside, VectorProducts
    from .workspace import Workspace


@dataclass(frozen=True, slots=True, eq=False)
class Machine:
    """What every block launches its kernels with. `exact`: attention loses no digit of queries and shares.

    `vector_rows`: up to so many rows go through the gemv, where what follows a product is fused with it.
    """

    gpu: Gpu
    vectors: VectorProducts
    matrices: MatrixProducts
    workspace: Workspace
    ones: torch.Tensor
    exact: bool
    vector_rows: int = VECTOR_ROWS

    def formats(self, matrices: Iterable[PackedMatrix], rows: int) -> Format:
        """What products of this many rows with these matrices read."""
        return self.vectors.formats(*matrices) if rows <= self.vector_rows else self.matrices.formats(matrices, rows)


class Flow:
    """The state between kernels: `x` holds norm `current` of the residual, up to `pending`'s last division."""

    def __init__(self, machine: Machine, rows: int) -> None:
        self.machine = machine
        self.rows = rows
        self.vector = rows <= machine.vector_rows
        self.x = machine.workspace.x
        self.pending: PendingNorm | None = None
        self.current: GpuNorm | None = None
        self._have = Format.NONE

    def formats(self, matrices: Iterable[PackedMatrix], rows: int | None = None) -> Format:
        """What products of this many rows (None: all of the step) with these matrices read."""
        return self.machine.formats(matrices, self.rows if rows is None else rows)

    def begin(self) -> None:
        """Forget the step before: x holds nothing of this one, even where two norms are one object."""
        self.pending, self.current, self._have = None, None, Format.NONE

    def need(self, norm: GpuNorm | None, formats: Format) -> None:
        """Make sure that x is `norm` of the residual (None: the residual itself) in these formats."""
        if self._have & formats == formats and self.current is norm and self._have:
            return
        self._finish(None, norm, formats, self.x, self.rows)

    def add(
        self,
        linear: GpuLinear,
        x: Activation,
        inner: Format,
        scale: float,
        post_norm: GpuNorm | None,
        norm: GpuNorm | None,
        formats: Format,
        extra: torch.Tensor | None = None,
        finished: bool = False,
    ) -> None:
        """residual += scale * post_norm(x W^T + bias + extra); then x = norm(residual) in `formats`.

        `inner`: x is a block's inner activation in that format, scaled for tensor cores. `finished`: x must not wait
        for a product to finish its norm, as those on tensor cores cannot.
        """
        space = self.machine.workspace
        simple = norm is None or (norm.rms and not finished and not formats & (Format.SHORT | Format.FRAGMENTS))
        if self.vector and not inner and simple and post_norm is None and extra is None and len(linear.matrices) == 1:
            gain = None if norm is None else norm.gain
            ones = self.machine.ones if gain is None else gain
            parts = self.machine.vectors.residual(
                linear, x, self.rows, space.residual, scale, ones, space.square_sums, self.x, formats
            )
            self.pending = None if norm is None else PendingNorm(space.square_sums, parts, norm.source.eps)
            self.current, self._have = norm, formats
            return
        part = self.product(linear, x, inner, space.parts)
        self.add_part(
            Part(part.values, part.count, part.part_step, part.row_step, None, extra), scale, post_norm, norm, formats
        )

    def add_part(
        self, part: Part, scale: float, post_norm: GpuNorm | None, norm: GpuNorm | None, formats: Format
    ) -> None:
        """As `add`, for a product that is already there."""
        self._finish(part, norm, formats, self.x, self.rows, scale, post_norm)

    def product(
        self, linear: GpuLinear, x: Activation, inner: Format, out: torch.Tensor, beside: Beside | None = None
    ) -> Part:
        """x W^T + bias in one or more parts in `out`; `inner` as in `add`; `beside` for a gemv only."""
        norm = self.pending if x is self.x else None
        if self.vector and not inner:
            self.machine.vectors.plain(linear, x, self.rows, out, linear.rows, norm, beside=beside)
            return Part(out, 1, 0, linear.rows)
        count = self.machine.matrices.plain(linear, x, self.rows, out, inner=inner)
        return Part(out, count, self.rows * linear.rows, linear.rows)

    def product_whole(self, linear: GpuLinear, x: Activation, out: torch.Tensor) -> None:
        """x W^T + bias [rows, outputs] in one part."""
        if self.vector:
            self.product(linear, x, Format.NONE, out)
        else:
            self.machine.matrices.plain(linear, x, self.rows, out, splits=1)

    def normalise(
        self, values: torch.Tensor, step: int, norm: GpuNorm | None, formats: Format, out: Activation
    ) -> None:
        """out = norm of rows of `values` that are `step` apart (None: the values themselves, in other formats)."""
        store_rows(self.machine.gpu, values, norm, formats, out, rows=self.rows, step=step)

    def precise(self, linear: GpuLinear, x: Activation, out: torch.Tensor) -> None:
        """x W^T + bias [rows, outputs] of a small float32 matrix, from x in natural order."""
        norm = self.pending if x is self.x else None
        if self.vector:
            self.machine.vectors.plain(linear, x, self.rows, out, linear.rows, norm)
        else:
            self.machine.matrices.precise(linear, x.natural, self.rows, out)

    def raw(self) -> Activation:
        """The residual itself as an activation in natural order, for routers that read a layer's input."""
        found = self.machine.workspace.raw
        store_rows(self.machine.gpu, self.machine.workspace.residual, None, Format.NATURAL, found, rows=self.rows)
        return found

    def normalise_residual(self, norm: GpuNorm) -> None:
        """residual = norm(residual): a norm of the embeddings."""
        x = self.machine.workspace.x
        residual = self.machine.workspace.residual
        store_rows(self.machine.gpu, residual, norm, Format.NATURAL, x, rows=self.rows)
        residual[: self.rows].copy_(x.natural[: self.rows, : residual.shape[1]])

    def gather(self, rows: torch.Tensor, count: int, norm: GpuNorm | None, formats: Format) -> Activation:
        """norm of `count` chosen rows of the residual."""
        found = self.machine.workspace.head_x
        residual = self.machine.workspace.residual
        store_rows(self.machine.gpu, residual, norm, formats, found, rows=count, gather=rows)
        return found

    def logits(
        self,
        head: GpuLinear,
        x: Activation,
        rows: int,
        norm: PendingNorm | None,
        scale: float,
        softcap: float | None,
        out: torch.Tensor,
    ) -> None:
        """out [rows, vocabulary] = softcap(scale * (x W^T + bias))."""
        if rows <= self.machine.vector_rows:
            self.machine.vectors.plain(head, x, rows, out.view(-1), head.rows, norm, scale, softcap)
            return
        self.machine.matrices.plain(head, x, rows, out.view(-1), splits=1)
        used = out[:rows]
        if scale != 1.0:
            used.mul_(scale)
        if softcap is not None:
            used.div_(softcap).tanh_().mul_(softcap)

    def _finish(
        self,
        part: Part | None,
        norm: GpuNorm | None,
        formats: Format,
        out: Activation,
        rows: int,
        scale: float = 1.0,
        post_norm: GpuNorm | None = None,
    ) -> None:
        gpu, residual = self.machine.gpu, self.machine.workspace.residual
        store_rows(gpu, residual, norm, formats, out, rows=rows, part=part, scale=scale, post_norm=post_norm)
        self.pending, self.current, self._have = None, norm, formats

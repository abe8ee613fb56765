"""Dense feed-forward blocks as launches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .activations import Format
from .linear import packed_alike
from .row_launch import Part

if TYPE_CHECKING:
    import torch

    from .activations import Activation
    from .flow import Flow, Machine
    from .model import GpuFeedForward, GpuNorm
    from .vector_products import Beside


class FeedForwardBlock:
    """Runs dense blocks."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def input_formats(self, flow: Flow, block: GpuFeedForward) -> Format:
        """The formats of x that the block's first products read."""
        return flow.formats(block.up.matrices) if packed_alike(block.gate, block.up) else Format.SHORT

    def run(
        self,
        flow: Flow,
        block: GpuFeedForward,
        scale: float,
        aside: bool,
        next_norm: GpuNorm | None,
        formats: Format,
    ) -> None:
        """residual += scale * block(x); then x = next_norm(residual). `aside`: attention's sum in `extra` joins it."""
        extra = self._machine.workspace.extra if aside else None
        x, inner = self._activate(flow, block)
        flow.add(block.down, x, inner, scale, block.post_norm, next_norm, formats, extra)

    def meets(self, flow: Flow, block: GpuFeedForward) -> bool:
        """Whether its kernels can meet the CPU beside what they compute (`Beside`)."""
        machine = self._machine
        exact = machine.vectors.arithmetic == "float32"  # bytes are stored where a program's number says
        return exact and flow.vector and packed_alike(block.gate, block.up) and not machine.gpu.interpreted

    def product(
        self,
        flow: Flow,
        block: GpuFeedForward,
        out: torch.Tensor,
        beside: tuple[Beside | None, Beside | None] = (None, None),
    ) -> Part:
        """block(x) in parts in `out`: a sum that waits for others. `beside`: what both kernels do, if it `meets`."""
        x, inner = self._activate(flow, block, beside[0])
        return flow.product(block.down, x, inner, out, beside[1])

    def _activate(self, flow: Flow, block: GpuFeedForward, beside: Beside | None = None) -> tuple[Activation, Format]:
        """The inner activation, and in which format it lies scaled for tensor cores (NONE: not scaled)."""
        machine, inner = self._machine, self._machine.workspace.inner[block.up.rows]
        kind, alike = block.block.activation, packed_alike(block.gate, block.up)
        if flow.vector and alike:
            formats = machine.vectors.formats(*block.down.matrices)
            of = block.gate, block.up, flow.x, flow.rows, kind
            machine.vectors.activated(*of, inner, formats, flow.pending, beside)
            return inner, Format.NONE
        formats = machine.matrices.formats(block.down.matrices, flow.rows) if alike else Format.SHORT
        return inner, machine.matrices.activated(block.gate, block.up, flow.x, flow.rows, kind, inner, formats)

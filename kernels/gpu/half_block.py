"""Feed-forward blocks whose other half is on the CPU, as launches: send x, compute the own half, wait, add both."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .activations import Format
from .row_launch import Part

if TYPE_CHECKING:
    import torch

    from .feed_forward_block import FeedForwardBlock
    from .flow import Flow, Machine
    from .half_model import GpuHalf
    from .meeting import Meeting
    from .model import GpuNorm


class HalfBlock:
    """Runs halves of dense blocks for one bucket; `number` int64 [1] is the step's number on the card."""

    def __init__(self, machine: Machine, dense: FeedForwardBlock, meeting: Meeting, number: torch.Tensor) -> None:
        self._machine, self._dense, self._meeting, self._number = machine, dense, meeting, number

    def input_formats(self, flow: Flow, half: GpuHalf) -> Format:
        """The formats of x that the half's first products read."""
        formats = Format.NONE if half.hot is None else self._dense.input_formats(flow, half.hot)
        return formats if half.gates is None else formats | flow.formats(half.gates.matrices)

    def run(
        self,
        flow: Flow,
        half: GpuHalf,
        scale: float,
        next_norm: GpuNorm | None,
        formats: Format,
    ) -> None:
        """residual += scale * post_norm(hot(x) + cold(x)); then x = next_norm(residual)."""
        space, rows = self._machine.workspace, flow.rows
        gates = None
        if half.gates is not None:
            gates = space.gates[: rows * half.gates.rows].view(rows, -1)
            flow.product_whole(half.gates, flow.x, space.gates)
        self._meeting.send(half.layer, self._number, space.residual, rows, gates, half.hot_neurons)
        part = None if half.hot is None else self._dense.product(flow, half.hot, space.parts)
        cold = self._meeting.receive(half.layer, self._number, rows, space.extra)
        width = space.residual.shape[1]
        if part is None:
            total = Part(cold, 1, 0, width)
        else:
            total = Part(part.values, part.count, part.part_step, part.row_step, None, cold)
        flow.add_part(total, scale, half.post_norm, next_norm, formats)

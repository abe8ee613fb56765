"""Feed-forward blocks whose other half is on the CPU, as launches: send x, compute the own half, wait, add both."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from .activations import Format
from .half_model import GpuExpertHalf, GpuHalf
from .meeting import FEW_ROWS
from .row_launch import Part

if TYPE_CHECKING:
    import torch

    from .expert_block import ExpertBlock
    from .feed_forward_block import FeedForwardBlock
    from .flow import Flow, Machine
    from .meeting import Meeting
    from .model import GpuNorm
    from .vector_products import Beside


class HalfBlock:
    """Runs halves of blocks for one bucket; `number` int64 [1] is the step's number on the card.

    Where the own half is of neurons and the rows are few, its two kernels meet the CPU beside what they compute.
    """

    def __init__(
        self,
        machine: Machine,
        dense: FeedForwardBlock,
        experts: ExpertBlock,
        meeting: Meeting,
        number: torch.Tensor,
    ) -> None:
        self._machine, self._dense, self._experts = machine, dense, experts
        self._meeting, self._number = meeting, number
        self._sending: Beside | None = None

    def input_formats(self, flow: Flow, half: GpuHalf | GpuExpertHalf) -> Format:
        """The formats of x that the half's first products read."""
        if isinstance(half, GpuExpertHalf):
            return Format.NATURAL if half.hot is None else Format.NATURAL | self._experts.input_formats(flow, half.hot)
        formats = Format.NONE if half.hot is None else self._dense.input_formats(flow, half.hot)
        return formats if half.gates is None else formats | flow.formats(half.gates.matrices)

    def begin(self, flow: Flow, half: GpuHalf | GpuExpertHalf, *, early: bool) -> None:
        """Send the residual, and what goes with it, to the CPU: as soon as it is known, `early` if before attention."""
        if isinstance(half, GpuExpertHalf):
            self._send_mixture(flow, half)
        else:
            self._send_neurons(flow, half, early)

    def finish(
        self,
        flow: Flow,
        half: GpuHalf | GpuExpertHalf,
        scale: float,
        aside: bool,
        next_norm: GpuNorm | None,
        formats: Format,
    ) -> None:
        """residual += scale * post_norm(hot(x) + cold(x)); then x = next_norm(residual).

        `aside`: attention's sum in the workspace's `extra` joins it.
        """
        space, rows = self._machine.workspace, flow.rows
        width = space.residual.shape[1]
        if self._sending is not None and isinstance(half, GpuHalf) and half.hot is not None:
            beside = self._sending, self._meeting.receiving(half.layer, self._number, rows, space.cold)
            self._sending = None
            own = self._dense.product(flow, half.hot, space.parts, beside)
            flow.add_part(replace(own, extra=space.cold), scale, half.post_norm, next_norm, formats)
            return
        part = self._hot(flow, half, space.extra if aside else None)
        waiting = space.extra if aside else None if part is None else part.extra
        cold = self._meeting.receive(half.layer, self._number, rows, space.cold, copy=waiting is not None)
        if waiting is not None:  # a shared expert's sum, attention's, or both are there already
            waiting = waiting[: rows * width].view(rows, width)
            if part is not None and part.extra_gate is not None:
                waiting.mul_(part.extra_gate[:rows, None].sigmoid())
            cold.add_(waiting)
        part = Part(cold, 1, 0, width) if part is None else replace(part, extra=cold, extra_gate=None)
        flow.add_part(part, scale, half.post_norm, next_norm, formats)

    def _hot(self, flow: Flow, half: GpuHalf | GpuExpertHalf, extra: torch.Tensor | None) -> Part | None:
        if isinstance(half, GpuExpertHalf):
            return None if half.hot is None else self._experts.product(flow, half.hot, extra)
        return None if half.hot is None else self._dense.product(flow, half.hot, self._machine.workspace.parts)

    def _send_mixture(self, flow: Flow, half: GpuExpertHalf) -> None:
        space, rows = self._machine.workspace, flow.rows
        if not half.block.router_reads_layer_input:
            self._experts.route(flow, half, flow.x)
        self._meeting.divide(space.chosen, space.shares, half.table, rows * half.block.top_k)
        self._meeting.send(half.layer, self._number, space.residual, rows, None, 0)

    def _send_neurons(self, flow: Flow, half: GpuHalf, early: bool) -> None:
        space, rows = self._machine.workspace, flow.rows
        gates = None
        if half.gates is not None:
            gates = space.gates[: rows * half.gates.rows].view(rows, -1)
            flow.product_whole(half.gates, flow.x, space.gates)
        sent = half.layer, self._number, space.residual, rows, gates, half.hot_neurons
        if half.hot is not None and not early and rows <= FEW_ROWS and self._dense.meets(flow, half.hot):
            self._sending = self._meeting.sending(*sent)  # `finish` comes next
        else:
            self._meeting.send(*sent)

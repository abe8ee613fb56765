"""Blocks whose other half crosses to the card piece by piece, as launches: a step that does not need the CPU."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import triton

from .activations import Format
from .half_model import GpuExpertHalf
from .model import GpuExperts
from .programs import streaming as programs
from .row_launch import Part

if TYPE_CHECKING:
    import torch

    from .expert_block import ExpertBlock
    from .feed_forward_block import FeedForwardBlock
    from .flow import Flow, Machine
    from .half_model import GpuHalf
    from .inputs import StepInputs
    from .model import GpuNorm
    from .streaming import Stream

_BLOCK = 1024


class StreamedBlock:
    """Runs whole blocks for one bucket of many rows: what is on the card, then every piece of the rest."""

    def __init__(
        self, machine: Machine, dense: FeedForwardBlock, experts: ExpertBlock, stream: Stream, inputs: StepInputs
    ) -> None:
        self._machine, self._dense, self._experts = machine, dense, experts
        self._stream, self._inputs = stream, inputs

    def start(self) -> None:
        """A step begins."""
        self._stream.begin()

    def input_formats(self, flow: Flow, half: GpuHalf | GpuExpertHalf) -> Format:
        """The formats of x that the products read."""
        formats = self._machine.matrices.all_formats(flow.rows)
        return formats | Format.NATURAL if isinstance(half, GpuExpertHalf) else formats

    def chosen(self, flow: Flow, half: GpuExpertHalf) -> None:
        """The router has chosen: experts that are hit may cross."""
        space, count = self._machine.workspace, flow.rows * half.block.top_k
        space.all_chosen[:count].copy_(space.chosen[:count])
        space.all_shares[:count].copy_(space.shares[:count])
        weights = self._stream.weights
        programs.count_choices[(-(-count // _BLOCK),)](
            space.chosen, self._inputs["live"], weights.uses[half.layer], half.block.top_k, count, BLOCK=_BLOCK
        )
        self._stream.release(half.layer)

    def begin(self, flow: Flow, half: GpuHalf | GpuExpertHalf, *, early: bool) -> None:
        """Choose the experts, unless they were chosen before attention."""
        if isinstance(half, GpuExpertHalf) and not half.block.router_reads_layer_input:
            self._experts.route(flow, half, flow.x)
            self.chosen(flow, half)

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
        space, width = self._machine.workspace, self._machine.workspace.residual.shape[1]
        waiting = space.extra if aside else None
        first = True
        if half.hot is not None:
            self._add_up(flow, self._product(flow, half.hot, half, None, waiting), first=True)
            first, waiting = False, None
        for index in self._stream.weights.by_layer[half.layer]:
            piece = self._stream.take(index)
            self._add_up(flow, self._product(flow, piece.block, half, piece.places, waiting), first=first)
            self._stream.give_back(index)
            first, waiting = False, None
        flow.add_part(Part(space.cold, 1, 0, width), scale, half.post_norm, next_norm, formats)

    def _product(
        self,
        flow: Flow,
        block: object,
        half: GpuHalf | GpuExpertHalf,
        places: torch.Tensor | None,
        waiting: torch.Tensor | None,
    ) -> Part:
        """A part of the block; `waiting`: a sum that joins the first one."""
        if isinstance(half, GpuExpertHalf) and isinstance(block, GpuExperts):
            self._take_choice(flow, half, half.table if places is None else places)
            return self._experts.product(flow, block, waiting)
        part = self._dense.product(flow, block, self._machine.workspace.parts)  # type: ignore[arg-type]
        return replace(part, extra=waiting)

    def _take_choice(self, flow: Flow, half: GpuExpertHalf, table: torch.Tensor) -> None:
        space, count = self._machine.workspace, flow.rows * half.block.top_k
        programs.take_choice[(-(-count // _BLOCK),)](
            space.all_chosen, space.all_shares, table, space.chosen, space.shares, count, BLOCK=_BLOCK
        )

    def _add_up(self, flow: Flow, part: Part, *, first: bool) -> None:
        space, gpu = self._machine.workspace, self._machine.gpu
        width = space.residual.shape[1]
        block = min(_BLOCK, triton.next_power_of_2(width))
        programs.add_up[(flow.rows, -(-width // block))](
            part.values,
            gpu.nothing if part.shares is None else part.shares,
            gpu.nothing if part.extra is None else part.extra,
            gpu.nothing if part.extra_gate is None else part.extra_gate,
            space.cold,
            width,
            part.part_step,
            part.row_step,
            PARTS=part.count,
            HAS_SHARES=part.shares is not None,
            HAS_EXTRA=part.extra is not None,
            HAS_EXTRA_GATE=part.extra_gate is not None,
            FIRST=first,
            BLOCK=block,
        )

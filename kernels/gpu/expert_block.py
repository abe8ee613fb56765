"""Mixtures of experts as launches; which expert gets which row never leaves the card."""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton

from localllm.kernels.spec import Gating

from .activations import Format
from .feed_forward_block import FeedForwardBlock
from .linear import nonlinearity
from .matrix_products import INNER_SCALE
from .programs import experts as expert_programs
from .row_launch import Part

if TYPE_CHECKING:
    import torch

    from .activations import Activation
    from .flow import Flow, Machine
    from .half_model import GpuExpertHalf
    from .inputs import StepInputs
    from .linear import GpuLinear
    from .matrix import PackedMatrix
    from .model import GpuExperts, GpuNorm

_GATINGS = {
    Gating.SOFTMAX: expert_programs.SOFTMAX.value,
    Gating.SOFTMAX_CHOSEN: expert_programs.SOFTMAX_CHOSEN.value,
    Gating.SIGMOID: expert_programs.SIGMOID.value,
}


class ExpertBlock:
    """Runs mixtures of experts for one bucket."""

    def __init__(self, machine: Machine, inputs: StepInputs) -> None:
        self._machine = machine
        self._inputs = inputs
        self._shared = FeedForwardBlock(machine)

    def input_formats(self, flow: Flow, block: GpuExperts) -> Format:
        """The formats of x that router, experts and the shared expert read."""
        formats = flow.formats(block.up.matrices) if flow.vector else Format.SHORT
        if block.shared is not None:
            formats |= self._shared.input_formats(flow, block.shared)
        reads_x = not block.block.router_reads_layer_input or block.shared_gate is not None
        return formats | Format.NATURAL if reads_x else formats

    def route(self, flow: Flow, block: GpuExperts | GpuExpertHalf, x: Activation) -> None:
        """Choose the experts of every row, from x in natural order."""
        space, spec, gpu = self._machine.workspace, block.block, self._machine.gpu
        flow.precise(block.router, x, space.router_logits)
        bias = block.selection_bias
        expert_programs.choose[(flow.rows,)](
            space.router_logits,
            gpu.nothing if bias is None else bias,
            space.chosen,
            space.shares,
            flow.rows,
            spec.weight_scale,
            STRIDE=spec.experts,
            EXPERTS=spec.experts,
            PADDED=triton.next_power_of_2(spec.experts),
            TOP_K=spec.top_k,
            GATING=_GATINGS[spec.gating],
            NORMALISE=spec.normalise,
            HAS_BIAS=bias is not None,
            **gpu.early(1),
        )

    def run(
        self,
        flow: Flow,
        block: GpuExperts,
        scale: float,
        aside: bool,
        next_norm: GpuNorm | None,
        formats: Format,
    ) -> None:
        """residual += scale * block(x); then x = next_norm(residual). `aside`: attention's sum in `extra` joins it."""
        if not block.block.router_reads_layer_input:
            self.route(flow, block, flow.x)
        part = self.product(flow, block, self._machine.workspace.extra if aside else None)
        flow.add_part(part, scale, block.post_norm, next_norm, formats)

    def product(self, flow: Flow, block: GpuExperts, extra: torch.Tensor | None) -> Part:
        """The chosen experts of x, which are in the workspace, and the shared one; `extra` joins them."""
        space, spec, extra_gate = self._machine.workspace, block.block, None
        if block.shared is not None:
            part = self._shared.product(flow, block.shared, space.parts)
            size = flow.rows * block.shared.down.rows
            total = part.values[: part.count * size].view(part.count, size).sum(0)
            if block.shared_gate is not None:
                flow.precise(block.shared_gate, flow.x, space.gate_logits)
            extra, extra_gate = self._join(total, extra, space, size, block.shared_gate is not None)
        if flow.vector:
            self._few(flow, block)
        else:
            self._many(flow, block)
        width = block.down.rows
        return Part(space.parts, spec.top_k, width, spec.top_k * width, space.shares, extra, extra_gate)

    def _join(
        self, total: torch.Tensor, aside: torch.Tensor | None, space: object, size: int, gated: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The shared expert's sum, and attention's where both wait, in `extra`."""
        workspace = self._machine.workspace
        if aside is None:
            workspace.extra[:size].copy_(total)
            return workspace.extra, workspace.gate_logits if gated else None
        if gated:
            rows = size // workspace.residual.shape[1]
            total = (total.view(rows, -1) * workspace.gate_logits[:rows, None].sigmoid()).view(-1)
        workspace.extra[:size].add_(total)
        return workspace.extra, None

    def _few(self, flow: Flow, block: GpuExperts) -> None:
        """Each (row, rank) slot through its expert by itself."""
        space, vectors = self._machine.workspace, self._machine.vectors
        slots = flow.rows * block.block.top_k
        formats = vectors.formats(*block.down.matrices)
        first = block.up if block.gate is None else block.gate
        inner = space.inner[block.up.rows]
        self._slot_products(first, block.up, flow.x, slots, block, inner, formats, gated=block.gate is not None)
        self._slot_products(block.down, block.down, inner, slots, block, None, Format.NONE, gated=False)

    def _slot_products(
        self,
        linear: GpuLinear,
        second: GpuLinear,
        x: Activation,
        slots: int,
        block: GpuExperts,
        out: Activation | None,
        formats: Format,
        *,
        gated: bool,
    ) -> None:
        space, vectors, gpu = self._machine.workspace, self._machine.vectors, self._machine.gpu
        matrix, other = linear.matrices[0], second.matrices[0]
        shape, nothing = matrix.shape, gpu.nothing
        tile = vectors.expert_tile(matrix, formats)
        sizes = _expert_sizes(matrix)
        expert_programs.expert_gemv[(-(-shape.rows // tile.rows), slots)](
            matrix.numbers,
            matrix.high,
            matrix.scales,
            matrix.supers,
            other.numbers,
            other.high,
            other.scales,
            other.supers,
            space.chosen,
            *vectors.inputs(matrix, x),
            nothing if linear.bias is None else linear.bias,
            nothing if second.bias is None else second.bias,
            space.parts,
            *((nothing,) * 4 if out is None else out.pointers[:4]),
            N=shape.rows,
            KP=shape.padded_columns,
            TOP_K=block.block.top_k,
            BY_SLOT=out is None,
            Q=sizes[0],
            H=sizes[1],
            S=sizes[2],
            P=sizes[3],
            U=tile.units,
            W=tile.warps_over_rows,
            G=tile.groups,
            BITS=shape.family.bits,
            FORM=shape.family.form.value,
            BYTES=vectors.arithmetic == "int8" and not shape.family.dense,
            GATED=gated,
            PLAIN=out is None,
            HAS_BIAS=linear.bias is not None,
            ACTIVATION=nonlinearity(block.block.activation),
            OUT_KP=0 if out is None else out.padded,
            FORMATS=int(formats),
            **gpu.early(tile.warps),
        )

    def _many(self, flow: Flow, block: GpuExperts) -> None:
        """Slots sorted by expert, then tiles of one expert each."""
        machine, space, spec = self._machine, self._machine.workspace, block.block
        slots = flow.rows * spec.top_k
        tile = machine.matrices.expert_tile
        tiles = min(-(-slots // tile) + spec.experts, slots)
        order, owners = space.slots[: tiles * tile], space.experts[:tiles]
        expert_programs.sort_by_expert[(1,)](
            space.chosen,
            self._inputs["live"],
            order,
            owners,
            SLOTS=slots,
            TOP_K=spec.top_k,
            EXPERTS=spec.experts,
            PADDED=triton.next_power_of_2(spec.experts),
            BM=tile,
            TILES=tiles,
            BLOCK=64,
            **machine.gpu.early(4),
        )
        inner = space.inner[block.up.rows]
        machine.matrices.expert_activated(
            block.gate, block.up, flow.x.short, order, owners, spec.top_k, spec.activation, inner
        )
        machine.matrices.expert_plain(block.down, inner.short, order, owners, space.parts, INNER_SCALE)


def _expert_sizes(matrix: PackedMatrix) -> tuple[int, int, int, int]:
    """How many elements of each array one expert has: numbers, high bits, scales, factors."""
    shape = matrix.shape
    words = [count * shape.padded_rows for count in shape.words_a_row]
    if shape.family.dense:
        words[0] = shape.padded_rows * shape.padded_columns
    return words[0], words[1], words[2], words[3]

"""A step as a sequence of kernel launches: what a graph captures, and what the interpreter runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton

from localllm.kernels.errors import ExecutionError
from localllm.kernels.step import Output

from .activations import Activation, Format
from .attention_block import AttentionBlock
from .expert_block import ExpertBlock
from .feed_forward_block import FeedForwardBlock
from .flow import Flow
from .half_block import HalfBlock
from .half_model import GpuExpertHalf, GpuHalf
from .library_products import byte_pointers
from .model import GpuExperts
from .programs import choice as choice_programs
from .programs import rows as row_programs
from .streamed_block import StreamedBlock

if TYPE_CHECKING:
    import torch

    from .flow import Machine
    from .inputs import StepInputs
    from .kv_pools import KVPools
    from .meeting import Meeting
    from .model import GpuLayer, GpuModel
    from .streaming import Stream

_BEST_BLOCK = 4096


class StepProgram:
    """Runs all layers for the inputs of one bucket. `run` only launches kernels; it never waits for the card."""

    def __init__(
        self,
        machine: Machine,
        model: GpuModel,
        pools: KVPools,
        inputs: StepInputs,
        meeting: Meeting | None = None,
        stream: Stream | None = None,
        entering: torch.Tensor | None = None,
    ) -> None:
        """`meeting`: where halves of blocks meet their other halves; `stream`: how those cross to the card instead;
        `entering`: rows in the host's memory with which the step begins.
        """
        self._machine = machine
        self._model = model
        self._inputs, self._entering = inputs, entering
        self._flow = Flow(machine, inputs.bucket.rows)
        self._attention = AttentionBlock(machine, model, pools, inputs)
        self._feed_forward = FeedForwardBlock(machine)
        self._experts = ExpertBlock(machine, inputs)
        self._half: HalfBlock | StreamedBlock | None = None
        if stream is not None:
            self._half = StreamedBlock(machine, self._feed_forward, self._experts, stream, inputs)
        elif meeting is not None:
            self._half = HalfBlock(machine, self._feed_forward, self._experts, meeting, inputs["number"])

    def run(self) -> None:
        """From token ids to logits, hidden vectors or best ids in the workspace."""
        self._flow.begin()
        if isinstance(self._half, StreamedBlock):
            self._half.start()
        self._embed()
        if self._entering is not None:
            residual = self._machine.workspace.residual[: self._inputs.bucket.rows]
            residual.copy_(self._entering[: residual.numel()].view(residual.shape), non_blocking=True)
        layers = self._model.layers
        for index, layer in enumerate(layers):
            self._layer(layer, layers[index + 1] if index + 1 < len(layers) else None)
        bucket = self._inputs.bucket
        if not bucket.outputs:
            return
        if bucket.output is Output.HIDDEN:
            self._flow.gather(self._inputs["outputs"], bucket.outputs, self._model.head_norm, Format.NATURAL)
            return
        self._head()
        if bucket.best:
            self._best(bucket.outputs, bucket.best)

    def head_of(self, rows: torch.Tensor) -> None:
        """Outputs of other rows of the step that ran last; `rows` int32, at most the bucket's outputs."""
        self._inputs["outputs"][: len(rows)].copy_(rows)
        if self._inputs.bucket.output is Output.HIDDEN:
            self._flow.gather(self._inputs["outputs"], len(rows), self._model.head_norm, Format.NATURAL)
        else:
            self._head(chosen=True)

    def _embed(self) -> None:
        machine, model, inputs = self._machine, self._model, self._inputs
        gpu, space = machine.gpu, machine.workspace
        shape = model.table.shape
        places = model.positions
        tables = model.rope_tables
        bucket = inputs.bucket
        sets = 2 if bucket.sinks else 1
        row_programs.embed[(bucket.rows, 1 + sets * tables)](
            *byte_pointers(model.table),
            inputs["tokens"],
            space.residual,
            model.spec.embed.scale,
            *((gpu.nothing,) * 4 if places is None else byte_pointers(places)),
            inputs["positions"],
            model.spec.embed.position_offset,
            model.frequencies,
            model.pairs,
            model.magnitudes,
            inputs["sink_positions"],
            space.cos_sin,
            bucket.rows,
            K=shape.columns,
            KP=shape.padded_columns,
            PB=4,
            BITS=shape.family.bits,
            FORM=shape.family.form.value,
            POS_BITS=0 if places is None else places.shape.family.bits,
            POS_FORM=5 if places is None else places.shape.family.form.value,
            HALF=model.frequencies.shape[1],
            TABLES=max(1, tables),
            **gpu.options(4),
        )
        if model.embed_norm is not None:
            self._flow.normalise_residual(model.embed_norm)

    def _layer(self, layer: GpuLayer, following: GpuLayer | None) -> None:
        flow, block = self._flow, layer.feed_forward
        experts = block if isinstance(block, GpuExperts | GpuExpertHalf) else None
        if experts is not None and experts.block.router_reads_layer_input:
            self._experts.route(flow, experts, flow.raw())
            if isinstance(self._half, StreamedBlock) and isinstance(experts, GpuExpertHalf):
                self._half.chosen(flow, experts)
        attention = layer.attention
        half = block if isinstance(block, GpuHalf | GpuExpertHalf) else None
        if layer.parallel and half is not None:  # the CPU need not wait for attention, which it does not read
            flow.need(block.norm, self._block_formats(block) | self._attention.input_formats(attention))
            self._halves().begin(flow, half, early=True)
        flow.need(attention.norm, self._attention.input_formats(attention))
        self._attention.run(flow, layer)
        if layer.parallel:
            self._attention.finish_aside(flow, attention)
            flow.need(block.norm, self._block_formats(block))
        else:
            formats = self._block_formats(block)
            self._attention.finish(
                flow, attention, layer.residual_scale, block.norm, formats, finished=experts is not None
            )
            if half is not None:
                self._halves().begin(flow, half, early=False)
        next_norm = self._model.head_norm if following is None else following.attention.norm
        formats = self._head_formats() if following is None else self._attention.input_formats(following.attention)
        if half is not None:
            self._halves().finish(flow, half, layer.residual_scale, layer.parallel, next_norm, formats)
            return
        runner = self._experts if experts is not None else self._feed_forward
        runner.run(flow, block, layer.residual_scale, layer.parallel, next_norm, formats)  # type: ignore[arg-type]

    def _halves(self) -> HalfBlock | StreamedBlock:
        if self._half is None:
            raise ExecutionError("a model with half a block on the CPU needs the CPU")
        return self._half

    def _block_formats(self, block: object) -> Format:
        if isinstance(block, GpuHalf | GpuExpertHalf):
            return self._halves().input_formats(self._flow, block)
        if isinstance(block, GpuExperts):
            return self._experts.input_formats(self._flow, block)
        return self._feed_forward.input_formats(self._flow, block)  # type: ignore[arg-type]

    def _head_formats(self) -> Format:
        return self._flow.formats(self._model.head.matrices)

    def _head(self, chosen: bool = False) -> None:
        model, flow, space = self._model, self._flow, self._machine.workspace
        bucket, head = self._inputs.bucket, self._model.spec.head
        if not chosen and bucket.all_rows and flow.current is model.head_norm:
            x, norm = flow.x, flow.pending
        else:
            formats = flow.formats(model.head.matrices, bucket.outputs)
            x, norm = flow.gather(self._inputs["outputs"], bucket.outputs, model.head_norm, formats), None
        flow.logits(model.head, x, bucket.outputs, norm, head.scale, head.softcap, space.logits)

    def _best(self, rows: int, count: int) -> None:
        space, gpu = self._machine.workspace, self._machine.gpu
        vocabulary = self._model.spec.vocabulary_size
        parts = -(-vocabulary // _BEST_BLOCK)
        middle = rows * count
        values, ids = space.best_values, space.best_ids
        choice_programs.best_of_part[(rows, parts)](
            space.logits,
            values[middle:],
            ids[middle:],
            V=vocabulary,
            PARTS=parts,
            BLOCK=_BEST_BLOCK,
            COUNT=count,
            **gpu.early(4),
        )
        choice_programs.best_of_parts[(rows,)](
            values[middle:],
            ids[middle:],
            values,
            ids,
            N=parts * count,
            PADDED=triton.next_power_of_2(parts * count),
            V=vocabulary,
            COUNT=count,
            **gpu.early(4),
        )


__all__ = ["Activation", "StepProgram"]

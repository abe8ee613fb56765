"""A bucket of steps: launched kernel by kernel the first time, replayed as one graph afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from localllm.kernels.errors import ExecutionError

if TYPE_CHECKING:
    from localllm.kernels.step import Step

    from .bucket import Bucket
    from .inputs import StepInputs
    from .step_program import StepProgram


class Runner:
    """One bucket: its inputs, its launches, and the graph that replays them."""

    def __init__(self, bucket: Bucket, inputs: StepInputs, program: StepProgram, *, graphs: bool) -> None:
        self.bucket = bucket
        self._inputs = inputs
        self._program = program
        self._wanted = graphs
        self._graph: torch.cuda.CUDAGraph | None = None

    def run(self, step: Step, number: int = 0) -> None:
        """Write the step's inputs and launch it. The first time the kernels are compiled, and the graph is captured."""
        self._inputs.write(step, number)
        if self._graph is not None:
            self._graph.replay()
            return
        self._copy_inputs()
        self._program.run()
        if self._wanted:
            torch.cuda.current_stream().synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self._copy_inputs()
                self._program.run()
            self._graph = graph

    def replay(self) -> None:
        """Launch the last step again."""
        if self._graph is None:
            raise ExecutionError("only a captured step can be replayed")
        self._graph.replay()

    def head_again(self, rows: torch.Tensor) -> None:
        """Logits of other rows of the step that just ran."""
        self._program.head_of(rows)

    def _copy_inputs(self) -> None:
        self._inputs.card_memory.copy_(self._inputs.host_memory, non_blocking=True)

"""What may be plugged into a request: grammars and readers of raw outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from localllm.kernels.step import Output


class Constraint(Protocol):
    """A grammar that one sequence must follow. A LocalLLMError raised here ends that request."""

    def allowed(self) -> npt.NDArray[np.bool_] | None:
        """[vocabulary] tokens that may come next; None: all."""

    def accept(self, token: int) -> None:
        """This token was chosen."""

    def complete(self) -> bool:
        """Whether nothing more can follow; the answer then ends."""


class RowReader(Protocol):
    """Takes the outputs of a prompt's rows, on the engine's thread. After a preemption rows may come a second time."""

    output: Output
    first: int  # the first position whose output is wanted

    def read(self, position: int, rows: npt.NDArray[np.float32]) -> None:
        """`rows` [R, vocabulary or hidden] are the outputs at `position`, position + 1, ...; copy what you keep."""

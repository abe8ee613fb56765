"""What is asked of the engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from localllm.errors import RequestError
from localllm.sampling import SamplingParameters

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .hooks import Constraint, RowReader


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """Token ids to continue. `n` answers with seeds seed, seed + 1, ...; they share the prompt's computation.

    `sinks`: leading tokens that a sliding window must keep (the system prompt). Higher `priority` goes first; requests
    of one `client` do not hold up those of others, and all answers of one `call` (by default: of this request) have one
    turn among the client's calls. `deadline` in seconds from submission. `constraint` makes a grammar for each answer.
    `reader` gets the outputs of the prompt's rows (the prompt is then computed anew). `show_special`
    puts the text of control tokens into the answer.
    """

    ids: Sequence[int]
    parameters: SamplingParameters = field(default_factory=SamplingParameters)
    sinks: int | None = None
    n: int = 1
    priority: int = 0
    client: str = ""
    call: str = ""
    deadline: float | None = None
    constraint: Callable[[], Constraint] | None = None
    reader: RowReader | None = None
    show_special: bool = False

    def __post_init__(self) -> None:
        if not len(self.ids):
            raise RequestError("the prompt is empty", parameter="prompt")
        if self.n < 1:
            raise RequestError(f"n must be 1 or more, not {self.n}", parameter="n")
        if self.n > 1 and self.reader is not None:
            raise RequestError("outputs of the prompt can be read for one answer only", parameter="n")

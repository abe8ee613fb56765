"""Readers of a prompt's outputs: log-probabilities of its own tokens, and the mean of its hidden vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from localllm.kernels.step import Output
from localllm.sampling import log_probabilities

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt


class NextTokenLogprobs:
    """`values` [len(ids) - 1]: log p(ids[i + 1] | ids[: i + 1]). `top` alternatives per token go to `best`."""

    output = Output.LOGITS

    def __init__(self, ids: Sequence[int], *, first: int = 0, top: int = 0) -> None:
        self.first = first
        self.values = np.zeros(max(0, len(ids) - 1), np.float32)
        self.best: list[tuple[tuple[int, float], ...]] = [()] * len(self.values)
        self._ids = np.asarray(ids, np.int64)
        self._top = top

    def read(self, position: int, rows: npt.NDArray[np.float32]) -> None:
        """Take the logits of some positions."""
        count = min(len(rows), len(self.values) - position)
        if count <= 0:
            return
        wanted = self._ids[position + 1 : position + 1 + count]
        if self._top:
            for index in range(count):
                value, best = log_probabilities(rows[index], int(wanted[index]), self._top)
                self.values[position + index], self.best[position + index] = value, best
            return
        for start in range(0, count, 32):  # a few rows at a time: vocabularies are large
            part = rows[start : min(start + 32, count)].astype(np.float64)
            highest = part.max(axis=1)
            total = highest + np.log(np.exp(part - highest[:, None]).sum(axis=1))
            chosen = part[np.arange(len(part)), wanted[start : start + len(part)]]
            self.values[position + start : position + start + len(part)] = chosen - total


class MeanHidden:
    """The mean over all tokens of the vectors after the final norm."""

    output = Output.HIDDEN
    first = 0

    def __init__(self, count: int, hidden_size: int) -> None:
        self._sums: dict[int, npt.NDArray[np.float64]] = {}
        self._count = count
        self._hidden_size = hidden_size

    def read(self, position: int, rows: npt.NDArray[np.float32]) -> None:
        """Take the vectors of some positions."""
        self._sums[position] = rows.sum(axis=0, dtype=np.float64)

    def mean(self) -> npt.NDArray[np.float32]:
        """[hidden]"""
        total = sum(self._sums.values(), np.zeros(self._hidden_size))
        return (total / self._count).astype(np.float32)

"""Weights as plain arrays: dequantised on use, the first ones kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from localllm.gguf_io import dequantize

if TYPE_CHECKING:
    from localllm.gguf_io import Tensor
    from localllm.kernels.spec import Linear

Real: TypeAlias = npt.NDArray[np.floating]

_CHUNK_VALUES = 1 << 24  # how much of a matrix is dequantised at once when it is not kept


class Weights:
    """Gives tensors as arrays of `dtype`. Keeps the first ones, up to `budget` bytes; others are made again each time.

    Not a least-recently-used cache on purpose: every step reads all weights in turn, so such a cache would never hit.
    """

    def __init__(self, dtype: np.dtype[np.floating], budget: int) -> None:
        self.dtype = dtype
        self.nbytes = 0
        self._budget = budget
        self._kept: dict[int, tuple[Tensor, Real]] = {}  # by identity; holding the tensor keeps its id its own
        self._experts: dict[tuple[int, int], Tensor] = {}

    def array(self, tensor: Tensor) -> Real:
        """The whole tensor, in its own shape."""
        kept = self._kept.get(id(tensor))
        if kept is not None:
            return kept[1]
        values: Real = dequantize(tensor).astype(self.dtype)
        if self._fits(tensor):
            self.nbytes += values.nbytes
            self._kept[id(tensor)] = tensor, values
        return values

    def rows(self, tensor: Tensor, indices: npt.NDArray[np.integer]) -> Real:
        """Rows `indices` of a matrix: [len(indices), columns]."""
        kept = self._kept.get(id(tensor))
        if kept is not None:
            found: Real = kept[1][indices]
            return found
        one_by_one = [dequantize(tensor.row_slice(int(i), int(i) + 1))[0] for i in indices]
        return np.array(one_by_one, self.dtype).reshape(len(indices), tensor.columns)

    def expert(self, tensor: Tensor, index: int) -> Tensor:
        """Matrix `index` of a stack, the same object each time."""
        return self._experts.setdefault((id(tensor), index), tensor.expert(index))

    def linear(self, x: Real, linear: Linear, expert: int | None = None) -> Real:
        """x @ weight.T + bias for x [..., inputs]; of a stack, matrix `expert`."""
        weight = linear.weight if expert is None else self.expert(linear.weight, expert)
        y: Real = self._product(x, weight)
        if linear.bias is None:
            return y
        bias = self.array(linear.bias)
        return y + (bias if expert is None else bias[expert])

    def _product(self, x: Real, weight: Tensor) -> Real:
        if id(weight) in self._kept or self._fits(weight):
            return x @ self.array(weight).T
        step = max(1, _CHUNK_VALUES // weight.columns)
        starts = range(0, weight.rows, step)
        chunks = (weight.row_slice(start, min(start + step, weight.rows)) for start in starts)
        return np.concatenate([x @ dequantize(chunk).astype(self.dtype).T for chunk in chunks], axis=-1)

    def _fits(self, tensor: Tensor) -> bool:
        return self.nbytes + int(np.prod(tensor.shape)) * self.dtype.itemsize <= self._budget

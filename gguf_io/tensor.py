"""A tensor of a mapped file: name, type, shape and the raw bytes, never copied."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .errors import GGUFError
from .quant_types import QuantType

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A view of one tensor's blocks.

    `shape` is in numpy order (the reverse of the file's): a matrix is (rows, columns), experts are
    (experts, rows, columns). `data` is uint8 of shape (*shape[:-1], bytes of a row); a row is a whole number of blocks.
    """

    name: str
    quant_type: QuantType
    shape: tuple[int, ...]
    data: npt.NDArray[np.uint8]

    @property
    def rows(self) -> int:
        """Rows of a matrix: the last but one dimension (1 for a vector)."""
        return self.shape[-2] if len(self.shape) > 1 else 1

    @property
    def columns(self) -> int:
        """Values in a row."""
        return self.shape[-1]

    @property
    def nbytes(self) -> int:
        """Bytes of the blocks in the file."""
        return self.data.nbytes

    def row_slice(self, start: int, stop: int) -> Tensor:
        """Rows [start, stop) of a matrix, or those values of an unquantised vector, as a view."""
        if not 0 <= start < stop <= self.shape[-2 if len(self.shape) > 1 else 0]:
            raise GGUFError(f"tensor {self.name}: rows {start}:{stop} are outside its shape {self.shape}")
        name = f"{self.name}[{start}:{stop}]"
        if len(self.shape) == 1:
            size = self.quant_type.type_size
            if self.quant_type.block_size != 1:
                raise GGUFError(f"tensor {self.name}: a quantised vector cannot be sliced")
            return replace(self, name=name, shape=(stop - start,), data=self.data[start * size : stop * size])
        shape = (*self.shape[:-2], stop - start, self.shape[-1])
        return replace(self, name=name, shape=shape, data=self.data[..., start:stop, :])

    def expert(self, index: int) -> Tensor:
        """Matrix `index` of a stack of experts, as a view."""
        if len(self.shape) != 3 or not 0 <= index < self.shape[0]:
            raise GGUFError(f"tensor {self.name}: no matrix {index} in shape {self.shape}")
        return replace(self, name=f"{self.name}[{index}]", shape=self.shape[1:], data=self.data[index])

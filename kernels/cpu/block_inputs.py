"""What feed-forward blocks read, kept for whoever calibrates on it: a buffer for each layer that a step fills."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .activation_format import FLOATS
from .normalise import NormKind, NormWeights, normalise
from .operation import Kind, Rows

if TYPE_CHECKING:
    import numpy.typing as npt

    from .lowering import Lowering
    from .operation import Operation

BLOCK = 32


class BlockInputs:
    """The residual stream before each feed-forward block, of the rows of the last step."""

    def __init__(self, layers: int, max_rows: int, width: int) -> None:
        self._width = width
        self._values = np.zeros((layers, max_rows, -(-width // BLOCK) * BLOCK), np.float32)

    def copy(self, lowering: Lowering, layer: int) -> Operation:
        """The operation that fills a layer's buffer."""
        rows = self._values[layer]
        return normalise(
            NormWeights(NormKind.NONE, lowering.width),
            source=lowering.x,
            target=Rows(int(rows.ctypes.data), rows.strides[0]),
            blocks=lowering.blocks,
            target_format=FLOATS,
            share=lowering.divided,
            kind=Kind.NORM,
        )

    def of(self, layer: int, rows: int) -> npt.NDArray[np.float32]:
        """A copy of what the first rows of the last step had in a layer, [rows, width]."""
        return self._values[layer, :rows, : self._width].copy()

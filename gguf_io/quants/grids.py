"""The code books of the IQ types, read once from the `gguf` package where their authors publish them."""

from __future__ import annotations

from enum import Enum
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .bits import Integers, Quants


class Grid(Enum):
    """A code book, named as the type that uses it in the `gguf` package."""

    IQ1_S = "IQ1_S"
    IQ2_XXS = "IQ2_XXS"
    IQ2_XS = "IQ2_XS"
    IQ2_S = "IQ2_S"
    IQ3_XXS = "IQ3_XXS"
    IQ3_S = "IQ3_S"


@cache
def code_book(grid: Grid) -> Quants:
    """The vectors of a code book, int8 of (entries, 8) or (entries, 4), read-only."""
    import gguf.quants  # 0.2 s, and only these types need it

    definition = getattr(gguf.quants, grid.value)
    definition.init_grid()
    book = np.asarray(definition.grid).reshape(definition.grid_shape).astype(np.int8)
    book.flags.writeable = False
    return book


def look_up(grid: Grid, codes: Integers) -> Quants:
    """The vectors of the codes, side by side: [n, k] to int8 [n, k * vector]."""
    book = code_book(grid)
    whole = book.view(f"<u{book.shape[1]}")[:, 0]  # one number for a vector: a gather of numbers is quick
    return np.take(whole, codes).view(np.int8)

"""What a step tells the card: one block of bytes, written by the host and copied in one go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from .bucket import Bucket, attention_tiles, most_tiles

if TYPE_CHECKING:
    import numpy.typing as npt

    from localllm.kernels.step import Step

_ALIGNMENT = 64


@dataclass(frozen=True, slots=True, eq=False)
class GroupInputs:
    """Tables of one cache group, on the card."""

    slots: torch.Tensor
    row_index: torch.Tensor
    tables: torch.Tensor
    sink_tokens: torch.Tensor
    window_starts: torch.Tensor


class StepInputs:
    """Named arrays of one bucket, twice: as numpy views of `host` memory and as tensors in `card` memory.

    A padding row has slot -1, belongs to no tile and repeats token 0 at position 0.
    """

    def __init__(self, bucket: Bucket, groups: int, rows_a_tile: int, host: torch.Tensor, card: torch.Tensor) -> None:
        self.bucket = bucket
        self.rows_a_tile = rows_a_tile
        self._host: dict[str, npt.NDArray[np.generic]] = {}
        self._card: dict[str, torch.Tensor] = {}
        size = 0
        host_bytes = host.numpy()
        for name, (dtype, shape) in _fields(bucket, groups, rows_a_tile).items():
            count = int(np.prod(shape)) * dtype.itemsize
            stop = size + count
            self._host[name] = host_bytes[size:stop].view(dtype).reshape(shape)
            self._card[name] = card[size:stop].view(_TORCH[dtype]).view(shape)
            size = -(-stop // _ALIGNMENT) * _ALIGNMENT
        self.nbytes = size
        self.host_memory = host[:size]
        self.card_memory = card[:size]
        self.groups = tuple(
            GroupInputs(*(self._card[f"{name}{group}"] for name in _GROUP_FIELDS)) for group in range(groups)
        )

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._card[name]

    def write(self, step: Step, number: int = 0) -> None:
        """Put a step that fits the bucket into the host's memory; `number` is what a hybrid's flags are raised to."""
        host, rows = self._host, len(step.tokens)
        host["number"][0] = number
        padded = rows < self.bucket.rows
        host["tokens"][:rows] = step.tokens
        host["positions"][:rows] = step.positions
        if padded:
            host["tokens"][rows:] = 0
            host["positions"][rows:] = 0
        host["live"][0] = rows
        wanted = len(step.output_rows)
        host["outputs"][:wanted] = step.output_rows[: len(host["outputs"])]
        host["outputs"][wanted:] = 0
        if self.bucket.sinks and step.sink_positions is not None:
            host["sink_positions"][:rows] = step.sink_positions
            host["sink_positions"][rows:] = 0
        if self.bucket.tree and step.tree is not None:
            host["ancestors"][...] = 0
            host["ancestors"][:rows, :rows] = step.tree.ancestors
        tiles = host["tiles"]
        if self.bucket.decode:
            tiles[:rows] = np.arange(rows, dtype=np.int32)[:, None]
            tiles[:rows, 2] = 1
            tiles[rows:] = 0
        else:
            found = attention_tiles(step, self.rows_a_tile)
            tiles[: len(found)] = found
            tiles[len(found) :] = 0
        for group, tables in enumerate(step.groups):
            sequences, pages = tables.pages.shape
            width = min(pages, self.bucket.pages)
            host[f"tables{group}"][:sequences, :width] = tables.pages[:, :width]
            host[f"slots{group}"][:rows] = tables.slots
            host[f"row_index{group}"][:rows] = tables.row_index
            if padded:
                host[f"slots{group}"][rows:] = -1
                host[f"row_index{group}"][rows:] = 0
            host[f"sink_tokens{group}"][:sequences] = tables.sink_tokens
            host[f"window_starts{group}"][:sequences] = tables.window_start


_INT32, _INT64, _UINT8 = np.dtype(np.int32), np.dtype(np.int64), np.dtype(np.uint8)
_TORCH = {_INT32: torch.int32, _INT64: torch.int64, _UINT8: torch.uint8}
_GROUP_FIELDS = ("slots", "row_index", "tables", "sink_tokens", "window_starts")


def _fields(bucket: Bucket, groups: int, rows_a_tile: int) -> dict[str, tuple[np.dtype[np.generic], tuple[int, ...]]]:
    rows = bucket.rows
    fields: dict[str, tuple[np.dtype[np.generic], tuple[int, ...]]] = {
        "tokens": (_INT32, (rows,)),
        "positions": (_INT64, (rows,)),
        "number": (_INT64, (1,)),
        "sink_positions": (_INT64, (rows if bucket.sinks else 1,)),
        "live": (_INT32, (1,)),
        "outputs": (_INT32, (max(1, bucket.outputs),)),
        "tiles": (_INT32, (most_tiles(bucket, rows_a_tile), 4)),
        "ancestors": (_UINT8, (rows, rows) if bucket.tree else (1, 1)),
    }
    for group in range(groups):
        fields |= {
            f"slots{group}": (_INT64, (rows,)),
            f"row_index{group}": (_INT32, (rows,)),
            f"sink_tokens{group}": (_INT32, (bucket.sequences,)),
            f"window_starts{group}": (_INT64, (bucket.sequences,)),
            f"tables{group}": (_INT32, (bucket.sequences, bucket.pages)),
        }
    return fields


def input_bytes(bucket: Bucket, groups: int, rows_a_tile: int) -> int:
    """Bytes that the inputs of a bucket occupy."""
    fields = _fields(bucket, groups, rows_a_tile).values()
    return sum(-(-int(np.prod(shape)) * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT for dtype, shape in fields)

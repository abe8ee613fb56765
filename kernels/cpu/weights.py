"""A model's weights in one block of memory: matrices as tiles, everything else as padded float32 vectors.

Matrices are asked for by name while the model is lowered. The first lowering only plans; then `load` allocates the
block and fills it from the mapped file; later lowerings find the same pieces at their addresses.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from localllm.gguf_io import QuantType, Tensor, dequantize
from localllm.kernels.executor import LoadProgress

from .compile import environment_hash
from .linear import Matrix
from .memory import Arena, Piece
from .page_types import padded
from .tile_cache import TileCache, plan_key
from .tiles.layout import TileLayout
from .tiles.registry import layout_for, rewriting

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    from .activation_format import Form

    Order = npt.NDArray[np.int64]
    Floats = npt.NDArray[np.float32]

TILE = 16
BLOCK = 32
_TILES_AT_ONCE = 128  # repacked together: bounds what is in memory beside the tiles


@dataclass(frozen=True, slots=True, eq=False)
class _TiledMatrix:
    layout: TileLayout
    piece: Piece
    bias: Piece | None
    tiles: int
    tile_bytes: int
    blocks: int
    stack: int
    order: Order


class Weights:
    """The block of a model's weights."""

    def __init__(self) -> None:
        self.arena = Arena("weights")
        self._matrices: dict[str, _TiledMatrix] = {}
        self._derived: dict[str, Tensor] = {}
        self._vectors: dict[str, Piece] = {}
        self._regions: dict[str, Piece] = {}
        self._tasks: list[tuple[int, Callable[[], None]]] = []
        self._types: set[QuantType] = set()
        self._plan = hashlib.sha256(environment_hash().encode())

    def matrix(
        self,
        name: str,
        tensors: Sequence[Tensor],
        order: Order | None = None,
        biases: Sequence[Tensor | None] = (),
        *,
        exact: bool = False,
    ) -> Matrix:
        """Rows of `tensors`, one below the other, in `order` (-1: a row of zeros); 3-D tensors give a stack.

        Tensors must be of one type and width. `exact`: as float32, whatever the type.
        """
        found = self._matrices.get(name)
        if found is None:
            found = self._plan_matrix(name, tensors, order, biases, exact)
            self._matrices[name] = found
        tile_bytes = found.tile_bytes
        stacked = found.stack > 1
        return Matrix(
            layout=found.layout,
            address=found.piece.address,
            tiles=found.tiles,
            tile_bytes=tile_bytes,
            blocks=found.blocks,
            bias=0 if found.bias is None else found.bias.address,
            stack_bytes=found.tiles * tile_bytes if stacked else 0,
            stack_bias_bytes=4 * TILE * found.tiles if stacked else 0,
        )

    @property
    def rewritten(self) -> list[str]:
        """For each quant type whose codes are not kept as the file has them, what becomes of it, in words."""
        found = [(quant_type.name, rewriting(quant_type)) for quant_type in self._types]
        return sorted(f"{name} {text}" for name, text in found if text is not None)

    def format_of(self, tensor: Tensor) -> Form:
        """What the tiles of a tensor's type read."""
        return layout_for(tensor.quant_type).activation

    def derived(self, name: str, make: Callable[[], Tensor]) -> Tensor:
        """A tensor that is computed from others, once; kept until the weights are loaded."""
        found = self._derived.get(name)
        if found is None:
            found = self._derived[name] = make()
        return found

    def vector(self, name: str, make: Callable[[], Floats]) -> int:
        """Address of a float32 vector; `make` gives it. Another 16 floats of zeros lie behind it."""
        piece = self._vectors.get(name)
        if piece is None:
            values = np.ascontiguousarray(make(), np.float32).reshape(-1)
            piece = self.arena.take(4 * (padded(len(values)) + TILE))
            self._vectors[name] = piece
            self._note(name, piece, values.tobytes())
            self._fill(piece, lambda target: _fill_vector(target, values))
        return piece.address

    def blob(self, name: str, make: Callable[[], npt.NDArray[np.uint8]]) -> int:
        """Address of constant bytes."""
        piece = self._vectors.get(name)
        if piece is None:
            content = make().reshape(-1)
            piece = self._vectors[name] = self.arena.take(len(content))
            self._note(name, piece, content.tobytes())
            self._fill(piece, lambda target: np.copyto(target, content))
        return piece.address

    def constant(self, name: str) -> npt.NDArray[np.uint8]:
        """The bytes of a vector or blob, once the weights are loaded; they may be changed between steps."""
        return self._vectors[name].bytes

    def refill(self, name: str, index: int, tensors: Sequence[Tensor], biases: Sequence[Tensor | None] = ()) -> None:
        """Put other rows into matrix `index` of a loaded stack: in the order and of the types of the first ones."""
        found = self._matrices[name]
        for _, fill in _matrix_tasks(found.piece, found.layout, tensors, found.order, found.stack, index):
            fill()
        if found.bias is not None:
            target = found.bias.bytes.reshape(found.stack, -1)[index]
            _fill_bias(target, tensors, biases, found.order, 1)

    def region(self, name: str, size: int, fill: Callable[[npt.NDArray[np.uint8]], None]) -> int:
        """Address of `size` bytes that `fill` writes when the weights are loaded."""
        piece = self._regions.get(name)
        if piece is None:
            piece = self._regions[name] = self.arena.take(size)
            self._note(name, piece)
            self._fill(piece, fill)
        return piece.address

    def load(self, progress: Callable[[LoadProgress], None] | None, threads: int = 1, kept: Path | None = None) -> None:
        """Allocate what was planned and fill it with several threads; `kept`: a file that may hold all of it."""
        self.arena.allocate()
        cache = None if kept is None else TileCache(kept, plan_key(self._plan.digest()))
        if cache is None or not cache.read(self.arena.memory, threads, progress):
            self._repack_all(progress, threads)
            if cache is not None:
                cache.write(self.arena.memory, progress)
        self._tasks.clear()
        # Later lowerings ask derived tensors for their shape and type only.
        self._derived = {name: replace(tensor, data=tensor.data[:0]) for name, tensor in self._derived.items()}

    def _repack_all(self, progress: Callable[[LoadProgress], None] | None, threads: int) -> None:
        total, done = max(1, sum(size for size, _ in self._tasks)), 0
        phase = "; ".join(["repacking weights", *self.rewritten])
        with ThreadPoolExecutor(threads) as pool:
            futures = {pool.submit(fill): size for size, fill in self._tasks}
            try:
                for future in as_completed(futures):
                    future.result()
                    done += futures[future]
                    if progress is not None:
                        progress(LoadProgress(phase, done / total))
            except BaseException:  # Ctrl-C, or a listener that has heard enough: what waits is not begun
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _note(self, name: str, piece: Piece, *details: bytes) -> None:
        """Add a piece to the hash of the plan: the same plan over the same file gives the same bytes."""
        self._plan.update(f"{name}\n{piece.offset} {piece.size}\n".encode())
        for detail in details:
            self._plan.update(detail)

    def _fill(self, piece: Piece, fill: Callable[[npt.NDArray[np.uint8]], None]) -> None:
        """Have a piece filled when the weights are loaded."""
        self._tasks.append((piece.size, lambda: fill(piece.bytes)))

    def _plan_matrix(
        self, name: str, tensors: Sequence[Tensor], order: Order | None, biases: Sequence[Tensor | None], exact: bool
    ) -> _TiledMatrix:
        if exact and tensors[0].quant_type is not QuantType.F32:
            tensors = [_as_float(tensor) for tensor in tensors]
        self._types.update(tensor.quant_type for tensor in tensors)
        rows = sum(tensor.rows for tensor in tensors)
        if order is None:
            order = np.arange(rows)
        order = np.concatenate([order, np.full(-len(order) % TILE, -1)])
        layout = layout_for(tensors[0].quant_type)
        blocks = layout.blocks(tensors[0].columns)
        stack = tensors[0].shape[0] if len(tensors[0].shape) == 3 else 1
        tiles = len(order) // TILE
        tile_bytes = layout.tile_bytes(tensors[0].columns)
        size = stack * tiles * tile_bytes
        piece = self.arena.take(size)
        self._note(name, piece, layout.name.encode(), order.tobytes())
        self._tasks.extend(_matrix_tasks(piece, layout, tensors, order, stack))
        bias = None
        if any(b is not None for b in biases):
            bias = self.arena.take(4 * len(order) * stack)
            self._fill(bias, lambda target: _fill_bias(target, tensors, biases, order, stack))
        return _TiledMatrix(layout, piece, bias, tiles, tile_bytes, blocks, stack, order)


def same_type(*tensors: Tensor) -> bool:
    """Whether tensors can be rows of one tiled matrix."""
    return len({(tensor.quant_type, tensor.columns, tensor.shape[:-2]) for tensor in tensors}) == 1


def _matrix_tasks(
    piece: Piece, layout: TileLayout, tensors: Sequence[Tensor], order: Order, stack: int, only: int | None = None
) -> Iterator[tuple[int, Callable[[], None]]]:
    """Repack runs of tiles of each tensor; the rows of a tile are of one tensor, or zeros.

    `only`: one matrix of the stack, of which `tensors` are the rows.
    """
    count = len(order) // TILE
    tile_bytes = piece.size // (stack * count)
    starts = np.cumsum([0, *(tensor.rows for tensor in tensors)])
    owners = np.searchsorted(starts, order.reshape(-1, TILE).max(axis=1), side="right") - 1
    for index in range(stack) if only is None else (only,):
        for number, tensor in enumerate(tensors):
            matrix = tensor.expert(index) if len(tensor.shape) == 3 else tensor
            mine = np.flatnonzero(np.maximum(owners, 0) == number)
            for first in range(0, len(mine), _TILES_AT_ONCE):
                part = mine[first : first + _TILES_AT_ONCE]
                rows = order.reshape(-1, TILE)[part].reshape(-1)
                rows = np.where(rows < 0, -1, rows - starts[number])
                fill = partial(_repack, piece, layout, matrix, rows, part + index * count, stack * count)
                yield len(part) * tile_bytes, fill


def _repack(piece: Piece, layout: TileLayout, matrix: Tensor, rows: Order, places: Order, count: int) -> None:
    """Rows of a matrix to the tiles at these places."""
    tiles = piece.bytes.reshape(count, -1)
    if places[-1] - places[0] == len(places) - 1:
        layout.repack(matrix, tiles[places[0] : places[-1] + 1], rows)
    else:
        tiles[places] = layout.repack(matrix, None, rows)


def _fill_bias(
    target: npt.NDArray[np.uint8],
    tensors: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    order: Order,
    stack: int,
) -> None:
    parts = [
        np.zeros((stack, tensor.rows), np.float32)
        if bias is None
        else dequantize(bias).astype(np.float32).reshape(stack, tensor.rows)
        for tensor, bias in zip(tensors, biases, strict=True)
    ]
    values = np.concatenate(parts, axis=1)[:, np.maximum(order, 0)]
    values[:, order < 0] = 0
    target.view(np.float32)[:] = values.reshape(-1)


def _fill_vector(target: npt.NDArray[np.uint8], values: Floats) -> None:
    floats = target.view(np.float32)
    floats[: len(values)] = values
    floats[len(values) :] = 0


def _as_float(tensor: Tensor) -> Tensor:
    values = np.ascontiguousarray(dequantize(tensor), np.float32)
    data = values.view(np.uint8).reshape(*tensor.shape[:-1], -1)
    return replace(tensor, quant_type=QuantType.F32, data=data)

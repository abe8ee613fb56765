"""All weights of a model in one allocation: counted first, then filled from the mapped file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from localllm.gguf_io import QuantType, dequantize
from localllm.kernels.executor import LoadProgress

from .card_memory import MOST_PIECE
from .families import F16, F32, Family, family_of
from .matrix import MatrixShape, PackedMatrix

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from localllm.gguf_io import Tensor

    from .device import Gpu

_ALIGNMENT = 64  # int32 words


class WeightMemory:
    """Hands out packed matrices and float32 vectors, in the order of the calls.

    Without an arena nothing is read: arrays have shapes only, and `words` counts what an arena must hold. The same
    calls with an arena (int32, `words` long) fill it. A tensor asked for twice in the same way is kept once.
    """

    def __init__(
        self,
        gpu: Gpu,
        arena: torch.Tensor | None = None,
        progress: Callable[[LoadProgress], None] | None = None,
        piece_bytes: int = MOST_PIECE,
    ) -> None:
        """`piece_bytes` of the file are packed at once; that needs about ten times as much memory for a moment."""
        self.words = 0
        self._piece_bytes = piece_bytes
        self.device = torch.device("meta") if arena is None else arena.device
        self._gpu = gpu
        self._arena = arena
        self._progress = progress
        self._matrices: dict[tuple[object, ...], PackedMatrix] = {}
        self._vectors: dict[tuple[int, ...], torch.Tensor] = {}
        self._kept: list[object] = []  # so that an id stays its tensor's own
        on_card = arena is not None and arena.is_cuda
        self._uploader = _PinnedUploader(gpu, piece_bytes) if on_card else None

    def matrix(self, tensors: Sequence[Tensor], family: Family | None = None) -> PackedMatrix:
        """Matrices of equal width one below the other (or one stack of experts), packed."""
        found = family or family_of(tensors[0].quant_type)
        key = (found, *(id(tensor) for tensor in tensors))
        if key not in self._matrices:
            first = tensors[0]
            experts = first.shape[0] if len(first.shape) == 3 else 1
            shape = MatrixShape(found, sum(tensor.rows for tensor in tensors), first.columns, experts)
            matrix = PackedMatrix.inside(shape, self._take(shape.nbytes // 4))
            if self._arena is not None:
                self._fill(matrix, tensors)
            self._matrices[key] = matrix
            self._kept.append(tensors)
        return self._matrices[key]

    def transposed(self, tensor: Tensor) -> PackedMatrix:
        """A matrix (or stack) stored with a row per input, as plain numbers with a row per output."""
        family = F32 if tensor.quant_type is QuantType.F32 else F16
        key = ("transposed", id(tensor))
        if key not in self._matrices:
            experts = tensor.shape[0] if len(tensor.shape) == 3 else 1
            shape = MatrixShape(family, tensor.columns, tensor.rows, experts)
            matrix = PackedMatrix.inside(shape, self._take(shape.nbytes // 4))
            if self._arena is not None:
                rows = matrix.numbers.view(experts, shape.padded_rows, shape.padded_columns)
                for expert in range(experts):
                    part = tensor.expert(expert) if len(tensor.shape) == 3 else tensor
                    step = max(1, self._piece_bytes // (4 * part.columns))
                    for start in range(0, part.rows, step):
                        stop = min(start + step, part.rows)
                        numbers = torch.from_numpy(dequantize(part.row_slice(start, stop))).to(rows.dtype)
                        rows[expert, : shape.rows, start:stop].copy_(numbers.to(rows.device).t())
            self._matrices[key] = matrix
            self._kept.append(tensor)
        return self._matrices[key]

    def numbers(self, tensors: Sequence[Tensor | None], sizes: Sequence[int] | None = None) -> torch.Tensor:
        """Tensors as one float32 vector; `sizes` says how many zeros stand for a missing one."""
        key = (*(id(tensor) for tensor in tensors), *(sizes or ()))
        if key not in self._vectors:
            counts = [
                int(np.prod(tensor.shape)) if tensor is not None else (sizes or [])[i]
                for i, tensor in enumerate(tensors)
            ]
            memory = self._take(sum(counts)).view(torch.float32)
            if self._arena is not None:
                for part, tensor in zip(memory.split(counts), tensors, strict=True):
                    if tensor is not None:
                        part.copy_(torch.from_numpy(dequantize(tensor).reshape(-1)))
            self._vectors[key] = memory
            self._kept.append(tensors)
        return self._vectors[key]

    def values(self, values: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> torch.Tensor:
        """Numbers of four or eight bytes that are no weights; kept anew each time."""
        source = torch.from_numpy(np.ascontiguousarray(values))
        memory = self._take(values.nbytes // 4).view(source.dtype).view(source.shape)
        if self._arena is not None:
            memory.copy_(source)
        return memory

    def vector(self, tensor: Tensor | None) -> torch.Tensor | None:
        """One tensor as a float32 vector."""
        return None if tensor is None else self.numbers([tensor])

    def _take(self, words: int) -> torch.Tensor:
        start = self.words
        self.words += -(-words // _ALIGNMENT) * _ALIGNMENT
        if self._arena is None:
            return torch.empty(words, dtype=torch.int32, device="meta")
        if self._progress is not None:
            self._progress(LoadProgress("loading weights onto the GPU", start / len(self._arena)))
        return self._arena[start : start + words]

    def _fill(self, matrix: PackedMatrix, tensors: Sequence[Tensor]) -> None:
        row = 0
        for tensor in tensors:
            for expert in range(matrix.shape.experts):
                part = tensor.expert(expert) if len(tensor.shape) == 3 else tensor
                first = row if len(tensor.shape) == 2 else expert * matrix.shape.padded_rows
                step = max(4, self._piece_bytes // max(1, part.data.nbytes // part.rows) // 4 * 4)
                for start in range(0, part.rows, step):
                    piece = part.row_slice(start, min(start + step, part.rows))
                    matrix.fill(first + start, piece, self._upload(piece.data))
            row += tensor.rows

    def _upload(self, data: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> torch.Tensor:
        if self._uploader is None:
            return torch.from_numpy(np.array(data))
        return self._uploader.upload(data)


class _PinnedUploader:
    """Copies pieces of a mapped file through two page-locked buffers, so that reading and transfer overlap."""

    def __init__(self, gpu: Gpu, piece_bytes: int) -> None:
        self._gpu, self._piece_bytes = gpu, piece_bytes
        self._buffers = [torch.empty(piece_bytes, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
        self._free = [torch.cuda.Event() for _ in range(2)]
        self._turn = 0

    def upload(self, data: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> torch.Tensor:
        """The bytes on the card, in the same shape."""
        if data.nbytes > self._piece_bytes:
            return torch.from_numpy(np.array(data)).to(self._gpu.device)
        self._turn = 1 - self._turn
        self._free[self._turn].synchronize()
        staged = self._buffers[self._turn][: data.nbytes]
        np.copyto(staged.numpy().reshape(data.shape), data)
        moved = staged.to(self._gpu.device, non_blocking=True).view(data.shape)
        self._free[self._turn].record()
        return moved

"""cuBLASLt, called by itself, so that its workspace is memory that we planned.

PyTorch gives the library 32 MiB a stream of its own on a Hopper card, and more in every graph. Constants and structures
are those of the cuBLAS documentation, section cuBLASLt.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import torch

from localllm.kernels.errors import ExecutionError

if TYPE_CHECKING:
    from .device import Gpu

WORKSPACE_BYTES = 32 << 20  # what the documentation advises for Hopper

_COMPUTE_FLOAT32, _FLOAT32, _FLOAT16, _BFLOAT16 = 68, 0, 2, 14
_TRANSPOSE_FIRST = 3  # an attribute of a product
_MOST_WORKSPACE, _ALIGNMENTS = 1, (5, 6, 7, 8)  # attributes of a preference; of both factors and the result, twice
_TYPES = {torch.float32: _FLOAT32, torch.float16: _FLOAT16, torch.bfloat16: _BFLOAT16}


class _Choice(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


class CublasLt:
    """Products of float16 or bfloat16 numbers with float32 sums."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._handle = ctypes.c_void_p()
        self._made: list[tuple[str, ctypes.c_void_p]] = []
        self._call("cublasLtCreate", ctypes.byref(self._handle))
        self._product = self._make("cublasLtMatmulDesc", ctypes.c_int(_COMPUTE_FLOAT32), ctypes.c_int(_FLOAT32))
        turned = ctypes.c_int32(1)
        self._call(
            "cublasLtMatmulDescSetAttribute",
            self._product,
            ctypes.c_int(_TRANSPOSE_FIRST),
            ctypes.byref(turned),
            ctypes.c_size_t(4),
        )
        self._preference = self._make("cublasLtMatmulPreference")

    def multiply(
        self, x: torch.Tensor, weights: torch.Tensor, out: torch.Tensor, factor: float, workspace: torch.Tensor
    ) -> None:
        """out [M, N] float32 = factor * x [M, K] weights [N, K]^T, on the current stream; rows may be any way apart.

        `workspace`: uint8, which the product may use. Raises ExecutionError when the library refuses.
        """
        (rows, columns), outputs = x.shape, len(weights)
        kept = len(self._made)
        first = self._layout(weights.dtype, columns, outputs, weights.stride(0))  # the library counts columns first
        second = self._layout(x.dtype, columns, rows, x.stride(0))
        result = self._layout(torch.float32, outputs, rows, out.stride(0))
        addresses = weights.data_ptr(), x.data_ptr(), out.data_ptr(), out.data_ptr()
        try:
            self._prefer(workspace.nbytes, addresses)
            choice = self._choose(first, second, result)
            at = [ctypes.c_void_p(address) for address in addresses]
            self._call(
                "cublasLtMatmul",
                self._handle,
                self._product,
                ctypes.byref(ctypes.c_float(factor)),
                at[0],
                first,
                at[1],
                second,
                ctypes.byref(ctypes.c_float(0.0)),
                at[2],
                result,
                at[3],
                result,
                ctypes.byref(choice.algorithm),
                ctypes.c_void_p(workspace.data_ptr()),
                ctypes.c_size_t(workspace.nbytes),
                ctypes.c_void_p(torch.cuda.current_stream().cuda_stream),
            )
        finally:
            self._free(kept)

    def _prefer(self, workspace: int, addresses: tuple[int, ...]) -> None:
        """No more workspace than there is, and nothing that needs addresses to be rounder than these are."""
        wishes: list[tuple[int, ctypes.c_uint64 | ctypes.c_uint32]] = [(_MOST_WORKSPACE, ctypes.c_uint64(workspace))]
        for attribute, address in zip(_ALIGNMENTS, addresses, strict=True):
            wishes.append((attribute, ctypes.c_uint32(min(256, address & -address))))
        for attribute, value in wishes:
            self._call(
                "cublasLtMatmulPreferenceSetAttribute",
                self._preference,
                ctypes.c_int(attribute),
                ctypes.byref(value),
                ctypes.c_size_t(ctypes.sizeof(value)),
            )

    def _choose(self, first: ctypes.c_void_p, second: ctypes.c_void_p, result: ctypes.c_void_p) -> _Choice:
        choice, count = _Choice(), ctypes.c_int()
        self._call(
            "cublasLtMatmulAlgoGetHeuristic",
            self._handle,
            self._product,
            first,
            second,
            result,
            result,
            self._preference,
            ctypes.c_int(1),
            ctypes.byref(choice),
            ctypes.byref(count),
        )
        if not count.value:
            raise ExecutionError("cuBLASLt knows no way to multiply these matrices")
        return choice

    def _layout(self, dtype: torch.dtype, rows: int, columns: int, step: int) -> ctypes.c_void_p:
        return self._make(
            "cublasLtMatrixLayout",
            ctypes.c_int(_TYPES[dtype]),
            ctypes.c_uint64(rows),
            ctypes.c_uint64(columns),
            ctypes.c_int64(step),
        )

    def _make(self, what: str, *arguments: object) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        self._call(f"{what}Create", ctypes.byref(made), *arguments)
        self._made.append((what, made))
        return made

    def _free(self, kept: int) -> None:
        while len(self._made) > kept:
            what, made = self._made.pop()
            self._call(f"{what}Destroy", made)

    def _call(self, name: str, *arguments: object) -> None:
        status = self._library[name](*arguments)
        if status:
            raise ExecutionError(f"{name} failed with status {status}")

    def close(self) -> None:
        """Give everything back."""
        self._free(0)
        if self._handle:
            self._call("cublasLtDestroy", self._handle)
            self._handle = ctypes.c_void_p()


def has_cublas(gpu: Gpu) -> bool:
    """Whether products of many rows are that library's (not under the interpreter, nor on other makers' cards)."""
    return not gpu.interpreted and torch.version.cuda is not None


def open_cublas(gpu: Gpu) -> CublasLt | None:
    """The library that PyTorch has loaded; None where there is none."""
    if not has_cublas(gpu):
        return None
    version = str(torch.version.cuda).split(".")[0]
    for name in (f"libcublasLt.so.{version}", f"cublasLt64_{version}.dll"):
        try:
            return CublasLt(ctypes.CDLL(name))
        except OSError:
            continue
    return None

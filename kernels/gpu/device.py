"""The card, or the interpreter that stands in for it, and which arithmetic suits it."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import torch

from localllm.kernels.errors import UnsupportedModelError

from .failures import check_triton, opening

if TYPE_CHECKING:
    from .card_memory import Arena

Arithmetic = Literal["float32", "int8"]

_RESERVE = 512 << 20  # of the card's memory: the CUDA context's own needs, graphs, programs


@dataclass(frozen=True, slots=True, eq=False)
class Gpu:
    """Where kernels run. `shared_memory`: bytes that one program may have; `arena`: where buffers lie."""

    device: torch.device
    name: str
    interpreted: bool
    capability: tuple[int, int]
    processors: int
    bandwidth: float  # bytes a second, from the card's clock and bus width; 0 where unknown
    issue_rate: float  # instructions a second over all threads
    shared_memory: int
    arena: Arena | None = None

    @property
    def nothing(self) -> torch.Tensor:
        """What fills pointer arguments that a kernel does not use."""
        return _nothing(self.device)

    @property
    def early_launch(self) -> bool:
        """Programmatic launch (a kernel starts while the one before it ends): Hopper and later."""
        return not self.interpreted and torch.version.hip is None and self.capability >= (9, 0)

    @property
    def old_tensor_cores(self) -> bool:
        """Whether tensor cores take 8 columns at a time: before Ampere."""
        return not self.interpreted and self.capability < (8, 0)

    @property
    def arithmetic(self) -> Arithmetic:
        """How one row is multiplied: with exact float32 products where the card has the instructions to spare.

        A packed 4-bit weight costs 3.6 instructions with float32 products and 1.8 with byte products. Cards with much
        bandwidth for their processors (A100 of 80 GB, H100 SXM, H200) would be bound by instructions: those get bytes.
        """
        if not self.bandwidth or not self.issue_rate:
            return "float32"
        share = 3.6 * self.bandwidth / 0.5625 / self.issue_rate
        return "float32" if share < 0.6 else "int8"

    def options(self, warps: int, stages: int = 2) -> dict[str, Any]:
        """Launch options for a kernel.

        Products are added up with fused multiply-adds, which Triton 3.10 no longer does unless told to (3.9 warns).
        """
        if self.interpreted:
            return {}
        return {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": True}

    def early(self, warps: int, stages: int = 2) -> dict[str, Any]:
        """Launch options of a kernel with a PDL parameter, and that parameter."""
        if self.interpreted:
            return {"PDL": False}
        found = self.options(warps, stages) | {"PDL": self.early_launch}
        return found | {"launch_pdl": True} if self.early_launch else found

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A zeroed tensor, in the arena if there is one."""
        if self.arena is not None:
            return self.arena.take(shape, dtype)
        return torch.zeros(shape, dtype=dtype, device=self.device)

    def inside(self, arena: Arena) -> Gpu:
        """The same card, whose buffers are cut out of an arena."""
        return replace(self, arena=arena)


def open_gpu(index: int = 0) -> Gpu:
    """The card of that index, or the interpreter on the CPU when TRITON_INTERPRET=1.

    Raises UnsupportedModelError when there is neither, saying what is missing.
    """
    if os.environ.get("TRITON_INTERPRET", "0") == "1":
        device = torch.device("cpu")
        return Gpu(device, "Triton's interpreter", True, (0, 0), 1, 0.0, 0.0, 1 << 40)
    if not torch.cuda.is_available():
        raise UnsupportedModelError(
            "no CUDA device is visible to PyTorch",
            hint="Check `nvidia-smi` and that PyTorch was built for CUDA, or run with --device cpu.",
        )
    device = torch.device("cuda", index)
    with opening():
        facts = torch.cuda.get_device_properties(device)
        capability = torch.cuda.get_device_capability(device)
    if torch.version.hip is None and capability < (7, 5):
        raise UnsupportedModelError(
            f"{facts.name} has compute capability {capability[0]}.{capability[1]}, but the kernels need 7.5",
            hint="Run with --device cpu.",
        )
    check_triton()
    clock = float(getattr(facts, "clock_rate", 0)) * 1e3
    memory_clock = float(getattr(facts, "memory_clock_rate", 0)) * 1e3
    bandwidth = 2 * memory_clock * float(getattr(facts, "memory_bus_width", 0)) / 8
    rate = facts.multi_processor_count * 128 * clock
    shared = shared_memory_of(facts.shared_memory_per_multiprocessor, capability)
    return Gpu(device, facts.name, False, capability, facts.multi_processor_count, bandwidth, rate, shared)


def shared_memory_of(processor: int, capability: tuple[int, int]) -> int:
    """Bytes that one program may have of a processor's shared memory: since Ampere the driver keeps a KiB of it."""
    return processor - (1024 if capability >= (8, 0) and torch.version.hip is None else 0)


@cache
def _nothing(device: torch.device) -> torch.Tensor:
    """Made when the first kernel is launched: who only plans takes nothing of a card."""
    return torch.zeros(16, dtype=torch.int32, device=device)


def free_memory(gpu: Gpu) -> int | None:
    """Bytes of the card that may be used; None for the interpreter, which has no card."""
    if gpu.interpreted:
        return None
    return max(0, unused(gpu) - _RESERVE)


def unused(gpu: Gpu) -> int:
    """Bytes of a card that nobody holds now."""
    with opening():
        return int(torch.cuda.mem_get_info(gpu.device)[0])


def short_type(gpu: Gpu) -> torch.dtype:
    """What tensor cores multiply: float16; under the interpreter float32, so that tests see no rounding."""
    return torch.float32 if gpu.interpreted else torch.float16

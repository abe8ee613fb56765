"""Who runs a model: the one interface of the reference, CPU, GPU and hybrid executors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt

    from .kv_layout import KVLayout, KVType
    from .selective import SelectivePolicy
    from .spec import ModelSpec
    from .step import Step
    from .turbo import Turbo

Device = Literal["auto", "cpu", "cuda", "hybrid", "reference"]
Mode = Literal["exact", "sparse", "turbo"]
MOST_THREADS = 256


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """A load is under way: what it is doing now, and how much of it is done (0 to 1, or None when unknown)."""

    phase: str
    fraction: float | None = None


@dataclass(frozen=True, slots=True)
class ExecutorOptions:
    """How to load a model. `threads` None: as many as measure fastest; `vram` in bytes, None: what is free.

    `mode` None: sparse where that is exact. `count_activations`: keep counts for a profile (CPU). `keep_inputs`:
    keep what feed-forward blocks read, for a calibration (CPU). `selective`: a lossy
    policy that keeps or reads a part of the keys (reference and CPU). `repacked`: where a large model's weights may be
    kept as the CPU needs them, a file named after the model (a .tiles file; it is checked, made and replaced).
    `kv_pages` of `kv_type`, by cache group: what `allocate_kv` will be asked for, so that a hybrid leaves room.
    `rates`, by layer: how often each neuron fires or each expert is chosen, None: unknown; they tell a hybrid its hot
    set, and the CPU which layers are worth running sparse.
    `turbo`: what mode turbo leaves out; without it that mode is an error.
    `main_memory`: free bytes of it; a hybrid keeps cold weights twice, to copy them to the card, if they fit."""

    threads: int | None = None
    max_rows: int = 512
    mode: Mode | None = None
    count_activations: bool = False
    keep_inputs: bool = False
    selective: SelectivePolicy | None = None
    vram: int | None = None
    repacked: Path | None = None
    progress: Callable[[LoadProgress], None] | None = None
    kv_pages: tuple[int, ...] = ()
    kv_type: KVType = "f16"
    rates: tuple[npt.NDArray[np.float64] | None, ...] = ()
    turbo: Turbo | None = None
    main_memory: int | None = None


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes by device and purpose, as planned and as allocated (they must be equal)."""

    weights: dict[str, int]
    kv: dict[str, int]
    workspace: dict[str, int]


class Executor(Protocol):
    """Runs steps of one model. Not thread-safe: one thread owns it."""

    spec: ModelSpec
    layout: KVLayout
    max_rows: int

    def allocate_kv(self, pages: tuple[int, ...], kv_type: KVType, staging_pages: tuple[int, ...]) -> None:
        """Make the page pools: per cache group `pages` of `kv_type`, and for quantised types `staging_pages` of f16."""

    def forward(self, step: Step) -> npt.NDArray[np.float32]:
        """Run at most `max_rows` rows; returns [R, vocabulary] logits or [R, hidden]. Valid until the next call."""

    def read_page(self, group: int, page: int) -> bytes:
        """A page's stored bytes over all layers of the group, for saving a session."""

    def write_page(self, group: int, page: int, data: bytes) -> None:
        """Put back what `read_page` gave."""

    def forget_pages(self) -> None:
        """No page's content is needed any more: the system gets their memory back, where that is possible."""

    def memory(self) -> MemoryUse:
        """What is allocated now."""

    def describe(self) -> str:
        """One line for people: device, instruction set or card, threads, what is special."""

    def close(self) -> None:
        """Free everything; the executor is unusable afterwards. May be called twice."""

"""Executors by device name; each is imported when it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .errors import UnsupportedModelError

if TYPE_CHECKING:
    from .executor import Device, Executor, ExecutorOptions
    from .spec import ModelSpec


def open_executor(spec: ModelSpec, device: Device, options: ExecutorOptions) -> Executor:
    """Load a model on a device: "cpu", "reference" (numpy, slow), or "auto", the fastest one that is there.

    Raises UnsupportedModelError for a device without an executor, and what loading raises (OutOfMemoryError...).
    """
    if device == "reference":
        from .reference import ReferenceExecutor

        return ReferenceExecutor(spec, options)
    if device in ("cpu", "auto"):
        from .cpu.executor import CpuExecutor

        return CpuExecutor(spec, options)
    raise UnsupportedModelError(f"there is no executor for the device {device!r}", hint="Use cpu, reference or auto.")

"""Executors by device name; each is imported when it is asked for."""

from __future__ import annotations

import logging
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import OutOfMemoryError, UnsupportedModelError
from .executor import LoadProgress

_log = logging.getLogger("localllm.kernels")

if TYPE_CHECKING:
    from .executor import Device, Executor, ExecutorOptions
    from .spec import ModelSpec


def open_executor(spec: ModelSpec, device: Device, options: ExecutorOptions) -> Executor:
    """Load a model on a device: "cpu", "cuda", "hybrid" (a card and the CPU at once), "reference" (numpy, slow), or
    "auto": the card if the model fits, else the hybrid if anything does, else the CPU.

    Raises UnsupportedModelError for a device without an executor or without its packages, and what loading raises
    (OutOfMemoryError...).
    """
    if options.mode == "turbo" and device in ("reference", "cuda"):
        raise UnsupportedModelError(
            f"there is no mode turbo on the device {device}", hint="Use --device cpu or hybrid."
        )
    if device == "reference":
        from .reference import ReferenceExecutor

        return ReferenceExecutor(spec, options)
    if device in ("cuda", "hybrid"):
        if options.selective is not None:
            raise UnsupportedModelError("the GPU executor has no selective KV policies", hint="Use --device cpu.")
        return _on_gpu(spec, options) if device == "cuda" else _hybrid(spec, options)
    if device == "auto" and options.selective is None and _has_card():
        if options.mode == "turbo":
            _log.warning("mode turbo leaves out neurons on the CPU only: what is on the card is computed exactly")
        for load in (_on_gpu, _hybrid):
            try:
                return load(spec, options)
            except OutOfMemoryError as error:
                reason = error.message
            except UnsupportedModelError as error:
                reason = error.message
                break
        if options.progress is not None:
            options.progress(LoadProgress(f"using the CPU: {reason}"))
    if device in ("cpu", "auto"):
        from .cpu.executor import CpuExecutor

        return CpuExecutor(spec, options)
    raise UnsupportedModelError(
        f"there is no executor for the device {device!r}", hint="Use cpu, cuda, hybrid, reference or auto."
    )


def _on_gpu(spec: ModelSpec, options: ExecutorOptions) -> Executor:
    _check_packages()
    from .gpu.beginning import hash_compiler, quick_imports

    with quick_imports():
        from .gpu.executor import GpuExecutor
    hash_compiler()
    return GpuExecutor(spec, options)


def _hybrid(spec: ModelSpec, options: ExecutorOptions) -> Executor:
    _check_packages()
    from .gpu.beginning import hash_compiler, quick_imports

    with quick_imports():
        from .hybrid.opening import open_hybrid
    hash_compiler()
    return open_hybrid(spec, options)


def _check_packages() -> None:
    missing = [name for name in ("torch", "triton") if find_spec(name) is None]
    if missing:
        raise UnsupportedModelError(
            f"the GPU executor needs {' and '.join(missing)}", hint='Install them with: pip install "localllm[gpu]"'
        )


def _has_card() -> bool:
    """Whether there seems to be a graphics card for the GPU executor; cheap, as importing torch is not."""
    packages = all(find_spec(name) is not None for name in ("torch", "triton"))
    driver = any(Path(path).exists() for path in ("/proc/driver/nvidia", "/dev/kfd"))
    return packages and (driver or shutil.which("nvidia-smi") is not None)

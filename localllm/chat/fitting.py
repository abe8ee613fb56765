"""Whether a model fits this machine: by the planner where the file is here, by its size where it is not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from localllm.errors import LocalLLMError, UnsupportedModelError

if TYPE_CHECKING:
    from localllm.hardware import Hardware
    from localllm.kernels.kv_layout import KVType
    from localllm.placement import Machine, ModelParts

    Known = dict[str, tuple[tuple[int, int], ModelParts]]  # by path: size and time of the file, what it holds

Fit = Literal["yes", "partly", "no", "unknown"]
Answer = tuple[Fit, str]  # and what that means
OVERHEAD = 1.1  # of a file's size that running it takes, with a short context, where nothing better is known
CONTEXT = 8192  # tokens that room is made for, where the model was trained for as many


class Fitting:
    """This machine, and what models are loaded with; `context` in tokens, None: as many as are usual."""

    def __init__(self, hardware: Hardware, machine: Machine, context: int | None, kv_type: KVType = "f16") -> None:
        self._hardware = hardware
        self._machine = machine
        self._context = context
        self._kv_type = kv_type

    def of_file(self, path: str, size_bytes: int, known: Known) -> Answer:
        """A file that is here; by its size alone when it cannot be read."""
        try:
            status = Path(path).stat()
            stamp = (status.st_size, status.st_mtime_ns)
            if path not in known or known[path][0] != stamp:
                known[path] = stamp, _parts(path, self._context, self._kv_type)
        except UnsupportedModelError as error:
            return "no", error.message
        except (LocalLLMError, OSError, ValueError):
            return fit_of_size(size_bytes, self._hardware)
        return fit_of_parts(known[path][1], self._machine, self._hardware)


def fit_of_parts(parts: ModelParts, machine: Machine, hardware: Hardware) -> Answer:
    """Whether the planner finds a place for everything, which one, and the speed to expect of it."""
    from localllm.placement import plan_placement

    plan = plan_placement(parts, machine)
    room = f"with {parts.context} tokens of context"
    if plan.cpu_bytes > machine.cpu_bytes:
        if plan.cpu_bytes <= hardware.total_bytes:
            return "partly", f"only when other programs give memory back ({room})"
        available = hardware.total_bytes + machine.gpu_bytes
        return "no", f"needs {parts.nbytes / 1e9:.1f} GB {room}, this machine has {available / 1e9:.1f} GB"
    speed = f", about {plan.prediction.decode:.0f} tok/s" if machine.measured else ""
    if plan.shape == "gpu":
        return "yes", f"on the GPU, {room}{speed}"
    if plan.shape == "cpu":
        where = "on the CPU, the GPU has too little room" if machine.gpu_bytes else "on the CPU"
        return ("partly" if machine.gpu_bytes else "yes"), f"{where}, {room}{speed}"
    share = plan.gpu_bytes / (plan.gpu_bytes + plan.cpu_bytes)
    return "partly", f"{share:.0%} on the GPU, the rest on the CPU, {room}{speed}"


def fit_of_size(size_bytes: int | None, hardware: Hardware) -> Answer:
    """Whether a file of this size can run here: from the fastest memory alone, from all memory, or not."""
    if size_bytes is None:
        return "unknown", "size unknown"
    needed = size_bytes * OVERHEAD
    card = max((card.free_bytes for card in hardware.cards), default=0)
    if card and needed <= card:
        return "yes", "on the GPU"
    if card and needed <= card + hardware.available_bytes:
        return "partly", f"{card / needed:.0%} on the GPU, the rest on the CPU"
    if not card and needed <= hardware.available_bytes:
        return "yes", "in memory, on the CPU"
    if needed <= hardware.total_bytes + card:
        return "partly", "only when other programs give memory back"
    return "no", f"needs {needed / 1e9:.1f} GB, this machine has {(hardware.total_bytes + card) / 1e9:.1f} GB"


def _parts(path: str, context: int | None, kv_type: KVType) -> ModelParts:
    from localllm.gguf_io import open_gguf
    from localllm.models import load_spec
    from localllm.placement import parts_of

    with open_gguf(path) as file:
        spec = load_spec(file, context=context)
        return parts_of(spec, context=context or min(spec.context_length, CONTEXT), kv_type=kv_type)

"""What `speculate` may say, and the speculation that it names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from localllm.errors import ConfigurationError

from .adaptive import AdaptiveSpeculation
from .lookup import LookupDrafter

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    import numpy.typing as npt

    from localllm.gguf_io import GGUFFile, Tensor
    from localllm.kernels.executor import Device, Executor
    from localllm.kernels.spec import ModelSpec

    from .next_layer import NextLayer
    from .protocol import Speculation

    Floats = npt.NDArray[np.float32]

CHOICES = "auto, off, lookup, next, model:NAME or heads:FILE"


@dataclass(frozen=True, slots=True)
class Target:
    """The model whose text is guessed, and how it runs: `context` in tokens, `parallel` sequences at a time."""

    file: GGUFFile
    spec: ModelSpec
    device: Device
    threads: int | None
    context: int
    parallel: int


def check_choice(choice: str) -> None:
    """Raise ConfigurationError for what is not one of `CHOICES`."""
    kind, _, name = choice.partition(":")
    if choice not in ("auto", "off", "lookup", "next") and not (kind in ("model", "heads") and name):
        raise ConfigurationError(f"speculation {choice!r} is not known", hint=f"choose {CHOICES}")


def open_speculation(choice: str, target: Target) -> Speculation | None:
    """The speculation that a user chose; None for none.

    Raises ConfigurationError for what is not one of `CHOICES` and for a draft model or heads that do not fit, and what
    opening those files raises.
    """
    check_choice(choice)
    kind, _, name = choice.partition(":")
    if choice == "off":
        return None
    if kind == "heads":
        return _open_heads(name, target)
    if choice == "next":
        return _open_next_layer(target)
    if kind == "model":
        from .draft_model import open_draft_model

        return open_draft_model(name, target)
    return AdaptiveSpeculation(lambda: (LookupDrafter(),))


def _open_heads(path: str, target: Target) -> Speculation:
    from localllm.gguf_io import open_gguf

    from .heads import Heads, HeadsDrafter
    from .trained_layer import FIRST, load_trained_layer

    tools = _Tools(target)
    file = open_gguf(path)  # a layer's weights stay mapped
    if FIRST in file.tensors:
        sizes = {"context": target.context, "parallel": target.parallel}
        return _guess_by(load_trained_layer(file, target.spec, tools.product, tools.executor, **sizes))
    with file:
        heads = Heads.load(file, target.spec.embed.table, tools.product)
    return AdaptiveSpeculation(lambda: (LookupDrafter(), HeadsDrafter(heads)), wants_hidden=True)


def _open_next_layer(target: Target) -> Speculation:
    from .next_layer import load_next_layer

    tools, sizes = _Tools(target), {"context": target.context, "parallel": target.parallel}
    return _guess_by(load_next_layer(target.file, target.spec, tools.product, tools.executor, **sizes))


def _guess_by(layer: NextLayer) -> Speculation:
    from .next_layer import NextLayerDrafter

    return AdaptiveSpeculation(
        lambda: (LookupDrafter(), NextLayerDrafter(layer)), wants_hidden=True, taps=layer.taps, shared=layer.close
    )


class _Tools:
    """What small networks beside the model run on."""

    def __init__(self, target: Target) -> None:
        from localllm.kernels.cpu.compile import KernelCompiler
        from localllm.kernels.cpu.isa import choose_isa
        from localllm.kernels.executor import ExecutorOptions

        self._compiler, self._options = KernelCompiler(choose_isa()), ExecutorOptions(threads=target.threads)

    def product(self, tensor: Tensor) -> Callable[[Floats], Floats]:
        """A matrix times one vector."""
        from localllm.kernels.cpu.product import TiledProduct

        return TiledProduct(self._compiler, tensor)

    def executor(self, spec: ModelSpec) -> Executor:
        """For a model of one layer."""
        from localllm.kernels.registry import open_executor

        return open_executor(spec, "cpu", self._options)

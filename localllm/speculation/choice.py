"""What `speculate` may say, and the speculation that it names."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from localllm.errors import ConfigurationError
from localllm.gguf_io import QuantType
from localllm.paths import expand_user

from .adaptive import AdaptiveSpeculation
from .lookup import MOST_TOKENS, LookupDrafter

if TYPE_CHECKING:
    from collections.abc import Callable

    from localllm.gguf_io import GGUFFile, Tensor
    from localllm.kernels.cpu.compile import KernelCompiler
    from localllm.kernels.executor import Device, LoadProgress
    from localllm.kernels.spec import ModelSpec

    from .protocol import Speculation

_FLOATS = (QuantType.F32, QuantType.F16, QuantType.BF16)
CHOICES = "auto, off, lookup, next, model:NAME or heads:FILE"


@dataclass(frozen=True, slots=True)
class Target:
    """The model whose text is guessed, and how it runs: `context` in tokens, `parallel` sequences at a time.

    `progress` hears of what takes a while, such as compiling.
    """

    file: GGUFFile
    spec: ModelSpec
    device: Device
    threads: int | None
    context: int
    parallel: int
    progress: Callable[[LoadProgress], None] | None = None

    def lookups(self) -> Callable[[], LookupDrafter]:
        """What makes the lookup of an answer: of so much text as the model sees, for it copies nothing else."""
        return partial(LookupDrafter, min(self.context, MOST_TOKENS))


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
    lookup = target.lookups()
    return AdaptiveSpeculation(lambda: (lookup(),))


def _open_heads(path: str, target: Target) -> Speculation:
    from localllm.gguf_io import open_gguf
    from localllm.kernels.cpu.product import TiledProduct

    from .heads import Heads, HeadsDrafter
    from .made_for import check_made_for
    from .medusa import FIRST_HEAD, MedusaDrafter, MedusaHeads
    from .trained_layer import FIRST, TrainedLayerDrafter, load_trained_layer

    compiler, trees, lookup = _compiler(), _may_branch(target), target.lookups()

    def product(tensor: Tensor) -> TiledProduct:
        return TiledProduct(compiler, tensor)

    with open_gguf(expand_user(path)) as file:
        check_made_for(file, target.file)
        if FIRST in file.tensors:
            layer = load_trained_layer(file, target.spec, compiler, target.progress)
            return AdaptiveSpeculation(
                lambda: (lookup(), TrainedLayerDrafter(layer)), wants_hidden=True, taps=layer.taps, trees=trees
            )
        if FIRST_HEAD in file.tensors:
            medusa = MedusaHeads.load(file, target.spec.embed.table, product)
            return AdaptiveSpeculation(
                lambda: (lookup(), MedusaDrafter(medusa, trees=trees)), wants_hidden=True, trees=trees
            )
        heads = Heads.load(file, target.spec.embed.table, product)
    return AdaptiveSpeculation(lambda: (lookup(), HeadsDrafter(heads)), wants_hidden=True, trees=trees)


def _may_branch(target: Target) -> bool:
    """Whether rows on a side branch of a tree are those of plain decoding but for the last bits.

    They read their keys from other places, so sums run in another order, which products of activations that are
    rounded to 8 bits make a thousand times larger. On cards no tree was measured yet.
    """
    floats = all(tensor.quant_type in _FLOATS for tensor in target.file.tensors.values())
    return target.device == "reference" or (target.device == "cpu" and floats)


def _open_next_layer(target: Target) -> Speculation:
    from localllm.kernels.cpu.product import TiledProduct
    from localllm.kernels.executor import ExecutorOptions
    from localllm.kernels.registry import open_executor

    from .next_layer import NextLayerDrafter, load_next_layer

    compiler, lookup = _compiler(), target.lookups()
    options = ExecutorOptions(threads=target.threads, progress=target.progress)
    layer = load_next_layer(
        target.file,
        target.spec,
        lambda tensor: TiledProduct(compiler, tensor),
        lambda spec: open_executor(spec, "cpu", options),
        context=target.context,
        parallel=target.parallel,
    )
    return AdaptiveSpeculation(
        lambda: (lookup(), NextLayerDrafter(layer)),
        wants_hidden=True,
        shared=layer.close,
        trees=_may_branch(target),
    )


def _compiler() -> KernelCompiler:
    from localllm.kernels.cpu.compile import KernelCompiler
    from localllm.kernels.cpu.isa import choose_isa

    return KernelCompiler(choose_isa())

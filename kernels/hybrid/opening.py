"""Opens a model on a card and the CPU, as much of it on the card as fits, in a stated order."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from localllm.kernels.cpu.executor import CpuExecutor
from localllm.kernels.executor import LoadProgress
from localllm.kernels.gpu.device import free_memory, open_gpu
from localllm.kernels.gpu.executor import GpuExecutor, GpuOptions
from localllm.kernels.gpu.kv_pools import cache_bytes
from localllm.kernels.kv_layout import KVLayout
from localllm.kernels.spec import MixtureOfExperts

from .executor import HybridExecutor
from .fitting import unit_rates
from .gpu_device import PIECE_BYTES, GpuDevice, fit_gpu, has_room_twice, planned_bytes
from .halves import split_model
from .staged import StagedExecutor, back_of, groups_of
from .switch_over import FEWEST

if TYPE_CHECKING:
    from localllm.kernels.executor import Executor, ExecutorOptions
    from localllm.kernels.spec import ModelSpec


def open_hybrid(spec: ModelSpec, options: ExecutorOptions) -> Executor:
    """A model on a card and the CPU, as much as fits beside the announced KV cache on the card.

    In this order: halves of every layer; else the last layers whole on the card, with the head, and the first ones
    whole on the CPU; else everything on the CPU.
    """
    gpu = open_gpu()
    budget = options.vram if options.vram is not None else free_memory(gpu)
    if budget is None:
        budget = 1 << 62
    room = budget - cache_bytes(gpu, KVLayout.of(spec), options)
    rates = unit_rates(spec, options.rates) if options.rates else None
    moving = any(isinstance(layer.feed_forward, MixtureOfExperts) for layer in spec.layers)
    own = GpuOptions(piece_bytes=PIECE_BYTES if options.max_rows >= FEWEST else 0, moving=moving)
    placement = fit_gpu(spec, options, room, own, rates)
    if placement is None or not has_room_twice(spec, placement, options.main_memory):
        own = GpuOptions(moving=moving)
        placement = fit_gpu(spec, options, room, own, rates)
    if placement is None:
        return _layers(spec, options, budget)
    divided = bool(split_model(spec, placement))
    if divided and not options.rates and options.progress is not None:
        options.progress(LoadProgress(_without_profile(spec)))
    make = partial(GpuDevice, gpu_options=own)
    made = HybridExecutor(spec, placement, make, replace(options, vram=budget), adaptive=moving)
    try:
        made.choose_switch_over()
    except BaseException:
        made.close()
        raise
    return made


def _without_profile(spec: ModelSpec) -> str:
    """What is done where nothing says which units are used most."""
    blocks = [layer.feed_forward for layer in spec.layers]
    if any(isinstance(block, MixtureOfExperts) for block in blocks):
        return "no profile: the first experts go onto the card, and others move there as they are used"
    if any(block.activation.sparse for block in blocks):
        return f"no profile: the first neurons count as hot; `localllm profile {spec.name}` finds those that are"
    return "dividing every layer alike: all neurons of this model are read for every token"


def _layers(spec: ModelSpec, options: ExecutorOptions, budget: int) -> Executor:
    """Whole layers: as many of the last ones on the card as fit; none: the CPU alone."""
    on_card = fit_layers(spec, options, budget)
    if not on_card:
        if options.progress is not None:
            size = f"{budget / 2**30:.2f} GiB of the card"
            options.progress(LoadProgress(f"using the CPU: {size} do not hold the head and one layer of {spec.name}"))
        return CpuExecutor(spec, options)

    def back(part: ModelSpec, given: ExecutorOptions) -> GpuExecutor:
        return GpuExecutor(part, replace(given, vram=budget), GpuOptions(entered=True))

    return StagedExecutor(spec, len(spec.layers) - on_card, back, options)


def fit_layers(spec: ModelSpec, options: ExecutorOptions, budget: int) -> int:
    """How many of the last layers, with the head and their KV cache, take at most `budget` bytes of the card."""
    gpu = open_gpu()

    def size(on_card: int) -> int:
        part = back_of(spec, len(spec.layers) - on_card)
        pages = tuple(options.kv_pages[group] for group in groups_of(spec, part)) if options.kv_pages else ()
        cache = cache_bytes(gpu, KVLayout.of(part), replace(options, kv_pages=pages))
        return planned_bytes(part, options, GpuOptions())({}) + cache

    low, high = 0, len(spec.layers) - 1  # with all of them this would be the card alone, or halves
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if size(middle) <= budget else (low, middle - 1)
    return low

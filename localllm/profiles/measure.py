"""Running a text through a model to count activations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from localllm.kernels.single_sequence import pages_for, simple_step
from localllm.kernels.spec import MixtureOfExperts
from localllm.kernels.step import Output

from .record import ActivationProfile, LayerProfile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from localllm.kernels.cpu.executor import CpuExecutor


def measure_profile(
    executor: CpuExecutor,
    ids: Sequence[int],
    *,
    model: str,
    context: int = 1024,
    progress: Callable[[float], None] | None = None,
) -> ActivationProfile:
    """Counts over token ids, in contexts of `context` tokens; the executor was opened with `count_activations`.

    `model` is the fingerprint of its file. The text is counted in two halves.
    """
    middle = len(ids) // 2
    snapshots = [executor.activation_counts()]
    position = 0
    executor.allocate_kv(pages_for(executor.layout, context), "f16", (0,) * len(executor.layout.groups))
    for end in (middle, len(ids)):
        while position < end:
            start = position % context
            stop = position + min(executor.max_rows, context - start, end - position)
            last = np.array([stop - position - 1], np.int32)
            step = simple_step(executor.layout, ids[position:stop], start, output_rows=last, output=Output.HIDDEN)
            executor.forward(step)
            position = stop
            if progress is not None:
                progress(position / len(ids))
        snapshots.append(executor.activation_counts())
    layers = {}
    empty: npt.NDArray[np.int64] = np.zeros(1, np.int64)
    for layer, total in snapshots[2].items():
        before, half = (counts.get(layer, empty) for counts in snapshots[:2])
        mixture = isinstance(executor.spec.layers[layer].feed_forward, MixtureOfExperts)
        layers[layer] = LayerProfile("experts" if mixture else "neurons", np.stack([half - before, total - half]))
    return ActivationProfile(model, (middle, len(ids) - middle), layers)

"""Mode turbo where a model is divided: only neurons on the CPU are left out, and only by gates that are computed."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from localllm.kernels.cpu.modes import turbo_layers
from localllm.kernels.turbo import Scores

from .halves import SplitFeedForward

if TYPE_CHECKING:
    from collections.abc import Mapping

    from localllm.kernels.executor import ExecutorOptions
    from localllm.kernels.spec import ModelSpec
    from localllm.kernels.turbo import LayerTurbo

    from .halves import Split

_log = logging.getLogger("localllm.kernels")


def cold_turbo(spec: ModelSpec, splits: Mapping[int, Split], options: ExecutorOptions) -> dict[int, LayerTurbo]:
    """By layer the thresholds of its cold neurons. Layers with guesses, and the head, are computed exactly."""
    found, guessed = {}, 0
    for index, layer in turbo_layers(spec, options.mode, options.turbo).items():
        split = splits.get(index)
        if not isinstance(split, SplitFeedForward):
            continue
        if layer.scores is Scores.GATE:
            found[index] = replace(layer, thresholds=layer.thresholds[split.cold_neurons])
        else:
            guessed += 1
    if guessed:
        _log.warning("%d layers run exactly: a divided model computes their gates, and guesses none", guessed)
    return found

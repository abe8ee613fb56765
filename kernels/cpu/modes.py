"""What `--mode` means on the CPU: which layers run sparse, and one line when that is not what was asked for."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from localllm.kernels.errors import ExecutionError
from localllm.kernels.spec import FeedForward
from localllm.kernels.turbo import EXTRA_BYTES, EXTRA_INPUTS, Scores

from .lower_sparse import sparse_support
from .sparse.codes import codes_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

    from localllm.kernels.executor import Mode
    from localllm.kernels.spec import MixtureOfExperts, ModelSpec
    from localllm.kernels.turbo import LayerTurbo, Shortlist, Turbo

    Rates = Sequence[npt.NDArray[np.float64] | None]

_log = logging.getLogger("localllm.kernels")


# Where sparse and dense layers cost the same, measured: short records that lie apart come at a third of the bandwidth
# of one stream, long ones at a good half.
_DENSITY, _DENSITY_OF_LONG, _LONG = 0.2, 0.25, 4096


def worthwhile_density(width: int) -> float:
    """The share of neurons that may fire before a dense layer is faster; `width`: of the residual stream."""
    return _DENSITY + _DENSITY_OF_LONG * min(1.0, width / _LONG)


def sparse_layers(spec: ModelSpec, mode: Mode | None, rates: Rates = ()) -> frozenset[int]:
    """The layers whose feed-forward blocks skip neurons that do not fire: all that can, unless the mode is exact.

    Without a mode, layers of which a profile says that too many neurons fire run dense; `rates` as in ExecutorOptions.
    In turbo its calibration says which layers skip neurons, see `turbo_layers`.
    """
    if mode in ("exact", "turbo"):
        return frozenset()
    support = sparse_support(spec.layers)
    if support.obstacles:
        _log.warning("%s run dense: they have no sparse form", ", ".join(support.obstacles))
    elif mode == "sparse" and not support.layers:
        _log.warning("no layer of this model has exact zeros to skip: it runs in mode exact")
    if mode == "sparse":
        return support.layers
    limit = worthwhile_density(spec.hidden_size)
    busy = {layer for layer, rate in enumerate(rates) if rate is not None and rate.mean() > limit} & support.layers
    if busy:
        _log.info("%d layers run dense: by the profile, more than %.0f%% of their neurons fire", len(busy), 100 * limit)
    return support.layers - busy


def turbo_layers(spec: ModelSpec, mode: Mode | None, turbo: Turbo | None) -> dict[int, LayerTurbo]:
    """By layer what mode turbo leaves out; ExecutionError without a calibration, or with one that does not fit."""
    if mode != "turbo":
        return {}
    if turbo is None:
        raise ExecutionError(
            "mode turbo needs a calibration of this model", hint="make it: localllm profile MODEL --predictor"
        )
    if len(turbo.layers) != len(spec.layers):
        raise ExecutionError(f"a calibration of {len(turbo.layers)} layers for a model of {len(spec.layers)}")
    wanted = {index: layer for index, layer in enumerate(turbo.layers) if layer is not None}
    able = sparse_support(spec.layers, wanted.keys()).layers
    for index, layer in wanted.items():
        if index not in able or not _fits(spec.layers[index].feed_forward, layer):
            raise ExecutionError(f"the calibration does not fit layer {index} of this model")
    return wanted


def checked_shortlist(spec: ModelSpec, mode: Mode | None, turbo: Turbo | None) -> Shortlist | None:
    """The shortlist of mode turbo, if there is one; ExecutionError if it does not fit the model."""
    shortlist = None if turbo is None or mode != "turbo" else turbo.shortlist
    if shortlist is None:
        return None
    if not can_have_shortlist(spec):
        raise ExecutionError("the head of this model can have no shortlist")
    weight = spec.head.linear.weight
    fits = shortlist.inputs.shape == (EXTRA_INPUTS,) and shortlist.extra.shape == (weight.rows, EXTRA_BYTES)
    fits = fits and shortlist.inputs.min() >= 0 and shortlist.inputs.max() < weight.columns
    if not fits or not 0 <= shortlist.margin < float("inf"):
        raise ExecutionError("the calibration's shortlist does not fit this model")
    return shortlist


def can_have_shortlist(spec: ModelSpec) -> bool:
    """Whether rows of the head can be read alone."""
    head = spec.head.linear
    plain = head.bias is None and head.weight.rows % 16 == 0 and head.weight.columns % EXTRA_INPUTS == 0
    return plain and codes_of(head.weight.quant_type) is not None


def _fits(block: FeedForward | MixtureOfExperts, turbo: LayerTurbo) -> bool:
    if not isinstance(block, FeedForward) or turbo.thresholds.shape != (block.up.weight.rows,):
        return False
    if turbo.scores is Scores.GATE:
        return True
    if not block.activation.sparse:  # what a guess misses is zero only there
        return False
    if turbo.scores is Scores.STORED:
        return block.predictor is not None
    sketch, neurons = turbo.sketch, block.up.weight.rows
    if sketch is None or sketch.scales.shape != (neurons,) or sketch.bias.shape != (neurons,):
        return False
    if sketch.extra.shape != (neurons, EXTRA_BYTES) or sketch.inputs.shape != (EXTRA_INPUTS,):
        return False
    return bool(sketch.inputs.min() >= 0 and sketch.inputs.max() < block.up.weight.columns)

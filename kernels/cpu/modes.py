"""What `--mode` means on the CPU: which layers run sparse, and one line when that is not what was asked for."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from .lower_sparse import sparse_support

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

    from localllm.kernels.executor import Mode
    from localllm.kernels.spec import ModelSpec

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
    """
    if mode == "exact":
        return frozenset()
    support = sparse_support(spec.layers)
    if mode == "turbo":
        _log.warning("turbo is not there yet: the model runs in mode %s", "sparse" if support.layers else "exact")
    if support.obstacles:
        _log.warning("%s run dense: they have no sparse form", ", ".join(support.obstacles))
    elif mode == "sparse" and not support.layers:
        _log.warning("no layer of this model has exact zeros to skip: it runs in mode exact")
    if mode is not None:
        return support.layers
    limit = worthwhile_density(spec.hidden_size)
    busy = {layer for layer, rate in enumerate(rates) if rate is not None and rate.mean() > limit} & support.layers
    if busy:
        _log.info("%d layers run dense: by the profile, more than %.0f%% of their neurons fire", len(busy), 100 * limit)
    return support.layers - busy

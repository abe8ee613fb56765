"""What `--mode` means on the CPU: which layers run sparse, and one line when that is not what was asked for."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from .lower_sparse import sparse_support

if TYPE_CHECKING:
    from localllm.kernels.executor import Mode
    from localllm.kernels.spec import ModelSpec

_log = logging.getLogger("localllm.kernels")


def sparse_layers(spec: ModelSpec, mode: Mode | None) -> frozenset[int]:
    """The layers whose feed-forward blocks skip neurons that do not fire: all that can, unless the mode is exact."""
    if mode == "exact":
        return frozenset()
    support = sparse_support(spec.layers)
    if mode == "turbo":
        _log.warning("turbo is not there yet: the model runs in mode %s", "sparse" if support.layers else "exact")
    if support.obstacles:
        _log.warning("%s run dense: they have no sparse form", ", ".join(support.obstacles))
    elif mode == "sparse" and not support.layers:
        _log.warning("no layer of this model has exact zeros to skip: it runs in mode exact")
    return support.layers

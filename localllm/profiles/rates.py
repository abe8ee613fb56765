"""What a model's profile says, for whoever places its parts."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from localllm.errors import ConfigurationError

from .record import load_profile, profile_path

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt

_log = logging.getLogger("localllm.profiles")


def measured_rates(model: Path, layers: int) -> tuple[npt.NDArray[np.float64] | None, ...]:
    """By layer how often each neuron fires or each expert is chosen; empty without a profile that fits the model."""
    where = profile_path(model)
    if not where.exists():
        return ()
    try:
        profile = load_profile(where, model)
    except ConfigurationError as error:
        _log.warning("loaded without a profile: %s", error)
        return ()
    return tuple(profile.frequency(layer) for layer in range(layers))

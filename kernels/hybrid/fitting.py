"""The largest placement that fits into a device's memory, from exact sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from localllm.kernels.spec import MixtureOfExperts

from .halves import split_model
from .placement import LayerPlacement, Placement, gates_first, group_size, unit_count

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

    from localllm.kernels.executor import Mode
    from localllm.kernels.spec import ModelSpec

    from .halves import Split

    Rates = Sequence[npt.NDArray[np.float64] | None]


def unit_rates(spec: ModelSpec, rates: Rates) -> Rates:
    """How often the units of every layer are read, from rates of its neurons or experts; None where they are unknown.

    Rates of another number of neurons are of another model, and say nothing.
    """
    found: list[npt.NDArray[np.float64] | None] = []
    for layer, rate in zip(spec.layers, rates, strict=True):
        block = layer.feed_forward
        if isinstance(block, MixtureOfExperts):
            found.append(rate if rate is not None and len(rate) == block.experts else None)
        elif rate is None or len(rate) != block.up.weight.rows:
            found.append(None)
        else:
            starts = np.arange(0, len(rate), group_size(block))
            found.append(np.asarray(np.add.reduceat(rate, starts), np.float64))
    return found


def fit_placement(
    spec: ModelSpec,
    budget: int,
    planned: Callable[[Mapping[int, Split]], int],
    *,
    mode: Mode | None = None,
    rates: Rates | None = None,
) -> Placement | None:
    """As many units as `planned` (bytes on the device) allows, alike in every layer; None: not even the rest fits.

    First attention, norms, head and embeddings, then the gates of ReLU blocks, then units, the most often read first:
    `rates` say per layer how often each unit is read. Every layer waits for its slower half, so all get the same share.
    """
    layers = [layer.feed_forward for layer in spec.layers]
    counts = [unit_count(block) for block in layers]
    for gates in (True, False):
        wanted = [gates and gates_first(block, mode) for block in layers]
        if gates and not any(wanted):
            continue

        def place(share: float, wanted: list[bool] = wanted) -> Placement:
            return Placement(
                tuple(
                    LayerPlacement(tuple(range(int(share * count))), gate)
                    for count, gate in zip(counts, wanted, strict=True)
                )
            )

        def fits(share: float, place: Callable[[float], Placement] = place) -> bool:
            return planned(split_model(spec, place(share))) <= budget

        if not fits(0.0):
            continue
        if fits(1.0):
            return place(1.0)
        low, high = 0.0, 1.0
        while high - low > 0.5 / max(counts):
            middle = (low + high) / 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return _hottest(place(low), rates)
    return None


def _hottest(placement: Placement, rates: Rates | None) -> Placement:
    """The same number of units of every layer, those that are read most."""
    if rates is None:
        return placement
    layers = []
    for layer, rate in zip(placement.layers, rates, strict=True):
        units = layer.units
        if rate is not None and len(units):
            units = tuple(sorted(np.argsort(-rate, kind="stable")[: len(units)].tolist()))
        layers.append(LayerPlacement(units, layer.gate))
    return Placement(tuple(layers))

"""A calibration as a file: a zip of plain arrays (.npz, nothing pickled), tied to its model and its form's version."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from localllm.errors import ConfigurationError
from localllm.kernels.turbo import EXTRA_BYTES, EXTRA_INPUTS, LayerTurbo, Scores, Shortlist, Sketch, Turbo
from localllm.profiles.facts_file import FactsForm, write_facts

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import numpy.typing as npt

VERSION = 1
SUFFIX = ".turbo"
HINT = "make it: localllm profile MODEL --predictor"
_FORM = FactsForm("calibration", VERSION, 2 * 2**30, hint="make it anew: localllm profile MODEL --predictor")
_MOST_LAYERS = 4096
_LARGEST_MARGIN = 1e30  # of logits, which are float32


@dataclass(frozen=True, slots=True)
class LayerFacts:
    """What a layer was calibrated to, shares of pairs (token, neuron): kept by score, of these not zero; its loss."""

    scores: Scores
    kept: float
    fired: float
    loss: float


@dataclass(frozen=True, slots=True)
class TurboCost:
    """Perplexities of the same tokens, what turbo adds in percent, its standard error, KL(exact || turbo) in nats."""

    tokens: int
    exact: float
    turbo: float
    percent: float
    error_percent: float
    divergence: float
    same_best: float  # share of tokens with the same likeliest next token

    def __str__(self) -> str:
        change = f"perplexity {self.exact:.2f} -> {self.turbo:.2f} ({self.percent:+.2f}% +- {self.error_percent:.2f}%)"
        return f"{change}, KL {self.divergence:.4f}, same best token {self.same_best:.1%}, {self.tokens} tokens"


@dataclass(frozen=True, slots=True, eq=False)
class TurboRecord:
    """A calibration and its cost on text that it was not fitted to; `facts` by number of layers that skip neurons."""

    model: str  # fingerprint
    budget: float
    turbo: Turbo
    facts: Mapping[int, LayerFacts]
    cost: TurboCost


def turbo_path(model: Path) -> Path:
    """Where the calibration of a model file lies."""
    return model.with_name(model.name.removesuffix(".gguf") + SUFFIX)


def save_turbo(record: TurboRecord, path: Path) -> None:
    """Write the file atomically. Raises DownloadError when the disk is full or read-only."""
    arrays: dict[str, npt.NDArray[Any]] = {}
    layers = []
    for index, layer in enumerate(record.turbo.layers):
        if layer is None:
            continue
        arrays[f"thresholds{index}"] = layer.thresholds
        if layer.sketch is not None:
            arrays.update({f"{one.name}{index}": getattr(layer.sketch, one.name) for one in fields(Sketch)})
        layers.append({"layer": index, **asdict(record.facts[index]), "scores": layer.scores.value})
    shortlist = record.turbo.shortlist
    if shortlist is not None:
        arrays.update(head_inputs=shortlist.inputs, head_extra=shortlist.extra)
    head = {
        "version": VERSION,
        "model": record.model,
        "budget": record.budget,
        "count": len(record.turbo.layers),
        "layers": layers,
        "margin": None if shortlist is None else shortlist.margin,
        "cost": asdict(record.cost),
    }
    write_facts(path, head, arrays)


def load_turbo(model: Path, path: Path | None = None) -> TurboRecord:
    """Read the calibration of a model; ConfigurationError when there is none, it is damaged, or of another model."""
    path = path or turbo_path(model)
    if not path.exists():
        raise ConfigurationError(f"mode turbo needs a calibration of {model.name}, and there is none", hint=HINT)
    return _FORM.read(path, model, _parse)


def _parse(head: Any, arrays: Mapping[str, npt.NDArray[Any]]) -> TurboRecord:
    count = int(head["count"])
    if not 0 <= count <= _MOST_LAYERS:
        raise ValueError("impossible number of layers")
    layers: list[LayerTurbo | None] = [None] * count
    facts = {}
    for one in head["layers"]:
        index, scores = int(one["layer"]), Scores(one["scores"])
        if not 0 <= index < count:
            raise ValueError("a layer that is none")
        thresholds = _array(arrays, f"thresholds{index}", np.float32, 1)
        sketch = _sketch(arrays, index, len(thresholds)) if scores is Scores.SKETCH else None
        if np.isnan(thresholds).any():
            raise ValueError("a threshold is no number")
        layers[index] = LayerTurbo(scores, thresholds, sketch)
        facts[index] = LayerFacts(scores, *(float(one[name]) for name in ("kept", "fired", "loss")))
    shortlist = None
    if head["margin"] is not None:
        margin = float(head["margin"])
        if not 0 <= margin <= _LARGEST_MARGIN:
            raise ValueError("an impossible margin")
        inputs, extra = _array(arrays, "head_inputs", np.int32, 1), _array(arrays, "head_extra", np.uint8, 2)
        if inputs.shape != (EXTRA_INPUTS,) or extra.shape[1] != EXTRA_BYTES:
            raise ValueError("a shortlist of a wrong form")
        shortlist = Shortlist(inputs, extra, margin)
    cost = head["cost"]
    whole = {one.name: float(cost[one.name]) for one in fields(TurboCost) if one.name != "tokens"}
    found = TurboCost(tokens=int(cost["tokens"]), **whole)
    return TurboRecord(str(head["model"]), float(head["budget"]), Turbo(tuple(layers), shortlist), facts, found)


def _sketch(arrays: Mapping[str, npt.NDArray[Any]], index: int, neurons: int) -> Sketch:
    scales, bias = (_array(arrays, f"{name}{index}", np.float32, 1) for name in ("scales", "bias"))
    inputs = _array(arrays, f"inputs{index}", np.int32, 1)
    extra = _array(arrays, f"extra{index}", np.uint8, 2)
    shapes = [array.shape for array in (scales, bias, inputs, extra)]
    if shapes != [(neurons,), (neurons,), (EXTRA_INPUTS,), (neurons, EXTRA_BYTES)]:
        raise ValueError("a sketch of a wrong form")
    if not (np.isfinite(scales).all() and np.isfinite(bias).all()) or inputs.min() < 0:
        raise ValueError("a sketch of impossible numbers")
    return Sketch(scales, bias, inputs, extra)


def _array(arrays: Mapping[str, npt.NDArray[Any]], name: str, kind: type, dimensions: int) -> npt.NDArray[Any]:
    array = arrays[name]
    if array.dtype != kind or array.ndim != dimensions:
        raise ValueError(f"{name} of a wrong form")
    return np.ascontiguousarray(array)

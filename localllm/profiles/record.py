"""A profile as numbers and as a file: a zip of plain arrays (.npz, nothing pickled), tied to its model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from .facts_file import FactsForm, write_facts

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    Counts = npt.NDArray[np.int64]

VERSION = 1
SUFFIX = ".profile"
_FORM = FactsForm("profile", VERSION, 256 * 2**20, hint="make it anew: localllm profile MODEL")
_LARGEST_COUNT = 2**48


@dataclass(frozen=True, slots=True, eq=False)
class LayerProfile:
    """Counts int64 [2, units]: how often each neuron fired, or expert was chosen, in each half of the text."""

    kind: Literal["neurons", "experts"]
    counts: Counts

    @property
    def total(self) -> Counts:
        """Counts over the whole text."""
        result: Counts = self.counts.sum(axis=0)
        return result


@dataclass(frozen=True, slots=True, eq=False)
class ActivationProfile:
    """What a text did in a model. `layers` has the number of each layer that was counted; dense ones are missing."""

    model: str  # fingerprint
    tokens: tuple[int, int]  # of the two halves of the text
    layers: dict[int, LayerProfile]

    @property
    def token_count(self) -> int:
        """Tokens of the whole text."""
        return sum(self.tokens)

    def frequency(self, layer: int) -> npt.NDArray[np.float64] | None:
        """The share of tokens for which each neuron fires (or expert is chosen); None for a layer without counts."""
        found = self.layers.get(layer)
        return None if found is None else found.total / max(1, self.token_count)

    def sparsity(self, layer: int) -> float:
        """The mean share of neurons (experts) that a token leaves out."""
        frequency = self.frequency(layer)
        return 0.0 if frequency is None else float(1.0 - frequency.mean())

    def hot_share(self, activations: float = 0.8) -> float:
        """The least share of all neurons (experts) that makes this share of the activations."""
        counts = np.sort(self._pooled().sum(axis=0))[::-1]
        reached = np.searchsorted(np.cumsum(counts), activations * counts.sum())
        return float(min(reached + 1, counts.size) / max(1, counts.size))

    def coverage(self, share: float) -> float:
        """What the hottest `share` of a layer, chosen on the first half of the text, makes of the second half.

        The mean over layers.
        """
        made = []
        for first, second in (layer.counts for layer in self.layers.values()):
            chosen = np.argsort(-first, kind="stable")[: round(share * first.size)]
            made.append(second[chosen].sum() / max(1, second.sum()))
        return float(np.mean(made)) if made else 0.0

    def _pooled(self) -> Counts:
        return np.concatenate([np.zeros((2, 0), np.int64), *(layer.counts for layer in self.layers.values())], axis=1)


def profile_path(model: Path) -> Path:
    """Where the profile of a model file lies."""
    return model.with_name(model.name.removesuffix(".gguf") + SUFFIX)


def save_profile(profile: ActivationProfile, path: Path) -> None:
    """Write the file atomically. Raises DownloadError when the disk is full or read-only."""
    kinds = {str(layer): one.kind for layer, one in profile.layers.items()}
    head = {"version": VERSION, "model": profile.model, "tokens": profile.tokens, "kinds": kinds}
    write_facts(path, head, {f"layer{layer}": one.counts for layer, one in profile.layers.items()})


def load_profile(path: Path, model: Path) -> ActivationProfile:
    """Read a profile of `model`; ConfigurationError when it is damaged, too new, or of another model."""
    return _FORM.read(path, model, _parse)


def _parse(head: Any, arrays: Mapping[str, npt.NDArray[Any]]) -> ActivationProfile:
    tokens = (int(head["tokens"][0]), int(head["tokens"][1]))
    layers = {}
    for name, kind in head["kinds"].items():
        counts = arrays[f"layer{int(name)}"]
        if kind not in ("neurons", "experts") or counts.dtype != np.int64 or counts.ndim != 2 or len(counts) != 2:
            raise ValueError("counts of a wrong form")
        if counts.size and not 0 <= counts.min() <= counts.max() <= min(max(tokens), _LARGEST_COUNT):
            raise ValueError("impossible counts")
        layers[int(name)] = LayerProfile(kind, counts)
    return ActivationProfile(str(head["model"]), tokens, layers)

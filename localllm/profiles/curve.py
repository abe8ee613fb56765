"""Curves of a profile: how many neurons make how much of the activity, for the terminal and as a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from localllm.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

    from .record import ActivationProfile

SHARES = tuple(i / 20 for i in range(21))


def coverage_curve(profile: ActivationProfile) -> list[tuple[float, float]]:
    """(share of neurons, what they make of the second half's activations), hottest of the first half first."""
    return [(share, profile.coverage(share)) for share in SHARES]


def text_curve(profile: ActivationProfile, width: int = 50) -> list[str]:
    """The curve as lines of text, then a line for the sparsity of each layer."""
    lines = ["hottest neurons -> share of all activations"]
    for share, covered in coverage_curve(profile)[::2]:
        lines.append(f"{share:5.0%} {covered:5.0%} {'#' * round(covered * width)}")
    lines.append("sparsity by layer")
    for layer in profile.layers:
        value = profile.sparsity(layer)
        lines.append(f"{layer:5d} {value:5.0%} {'#' * round(value * width)}")
    return lines


def save_picture(profile: ActivationProfile, path: Path) -> None:
    """The curve and the layers as a picture file; ConfigurationError without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigurationError(
            "drawing a picture needs matplotlib", hint="pip install 'localllm[plot]', or use --plot for the terminal"
        ) from error
    figure = Figure(figsize=(9, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    curve = coverage_curve(profile)
    left.plot([share for share, _ in curve], [covered for _, covered in curve])
    left.set_xlabel("share of neurons, hottest first")
    left.set_ylabel("share of activations")
    right.bar(list(profile.layers), [profile.sparsity(layer) for layer in profile.layers])
    right.set_xlabel("layer")
    right.set_ylabel("sparsity")
    figure.savefig(path)

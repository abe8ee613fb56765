"""What `profile --predictor` does and says: a calibration of mode turbo."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from .progress import load_progress

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from localllm.gguf_io import GGUFFile
    from localllm.kernels.spec import ModelSpec
    from localllm.turbo.record import TurboRecord

BUDGET = 0.01
_THRESHOLD = "powerinfer.sparse_threshold"


def calibrated(
    file: GGUFFile, spec: ModelSpec, ids: Sequence[int], path: Path, budget: float | None, threads: int | None
) -> TurboRecord:
    """Calibrate a model, and keep what was found beside it."""
    from localllm.kernels.executor import LoadProgress
    from localllm.profiles.facts_file import fingerprint
    from localllm.turbo.calibrate import calibrate
    from localllm.turbo.record import save_turbo, turbo_path

    with load_progress(False) as progress:
        record = calibrate(
            spec,
            ids,
            model=fingerprint(path),
            budget=BUDGET if budget is None else budget,
            threshold=file.metadata.floating(_THRESHOLD, 0.0),
            threads=threads,
            progress=lambda done: progress(LoadProgress("calibrating turbo", done)),
        )
        progress.done()
    save_turbo(record, turbo_path(path))
    return record


def turbo_facts(record: TurboRecord, path: Path) -> dict[str, Any]:
    """A calibration as JSON facts."""
    layers = [{"layer": i, **asdict(one), "scores": one.scores.value} for i, one in sorted(record.facts.items())]
    shortlist = record.turbo.shortlist
    return {
        "calibration": str(path),
        "budget": record.budget,
        "cost": asdict(record.cost),
        "layers": layers,
        "shortlist_margin": None if shortlist is None else shortlist.margin,
    }


def turbo_lines(record: TurboRecord, path: Path) -> list[str]:
    """A calibration for people."""
    count, total = len(record.facts), len(record.turbo.layers)
    kinds = [one.scores.value for one in record.facts.values()]
    ways = ", ".join(f"{kinds.count(kind)} by {kind}" for kind in dict.fromkeys(kinds))
    lines = [f"turbo: {count} of {total} layers skip neurons" + (f" ({ways})" if ways else "")]
    if not count:
        lines[0] += ": within the budget none would be faster than with all its neurons"
    if record.turbo.shortlist is not None:
        lines.append("turbo: logits of unlikely tokens are guessed")
    lines.append(f"turbo: {record.cost}; budget {record.budget:.1%}")
    lines.append(f"saved in {path}; use it with --mode turbo")
    return lines


def saved_lines(path: Path) -> list[str]:
    """What is known of a model's calibration, nothing without one; a damaged one is said on stderr."""
    from localllm.errors import ConfigurationError
    from localllm.turbo.record import load_turbo, turbo_path

    where = turbo_path(path)
    if not where.exists():
        return []
    try:
        return turbo_lines(load_turbo(path), where)[:-1]
    except ConfigurationError as error:
        click.echo(f"no turbo: {error}", err=True)
        return []

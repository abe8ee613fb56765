"""Figures by name, out of docs/benchmarks/*.json, and rows of the table of promises that are filled from them."""

from __future__ import annotations

import json
import operator
import re
from pathlib import Path
from typing import Any

FIGURES = Path(__file__).resolve().parents[1] / "docs" / "benchmarks"
CPU = {
    "decode": "decode_tokens_per_second",
    "prefill": "prefill_tokens_per_second",
    "share": "memory_bandwidth_fraction",
}
SIGNS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_FIELD = re.compile(r"\{([^{}|]+)\|([^{}]+)\}")  # {part.figure|format}


def read(name: str) -> Any:
    """The content of a file, or None when it is not there."""
    path = FIGURES / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def value(name: str) -> float:
    """`part.figure`, or `cpu.model.threads.figure`; KeyError for one that was not measured."""
    part, _, rest = name.partition(".")
    found = read(part)
    if found is None:
        raise KeyError(name)
    if part == "cpu":
        model, threads, column = rest.rsplit(".", 2)
        for facts in found["facts"]:
            if (Path(facts["model"]).name, facts["threads"]) == (model, int(threads)):
                return float(facts[CPU[column]])
        raise KeyError(name)
    return float(found["facts"][rest])


def filled(row: dict[str, Any]) -> dict[str, str]:
    """A row as it is shown: asked, seen, held, source and date, which may stand in the source.

    A row with `limits` ([figure, sign, number]) is judged by its figures, and has the command and date of their run.
    """
    try:
        seen = _FIELD.sub(lambda field: format(value(field[1]), field[2]), row["seen"])
    except KeyError:
        return {**row, "seen": "not in this run", "held": "open", "source": "", "date": ""}
    if "limits" not in row:
        return {**row, "seen": seen, "date": row.get("date") or _date(row["source"])}
    right = [SIGNS[sign](value(name), limit) for name, sign, limit in row["limits"]]
    runs = [read(name) for name in dict.fromkeys(name.partition(".")[0] for name, _, _ in row["limits"])]
    commands = ", ".join(f"`{run['command']}`" for run in runs)
    source = f"{commands}; {row['source']}" if row.get("source") else commands
    held = "yes" if all(right) else "part" if any(right) else "no"
    return {**row, "seen": seen, "held": held, "source": source, "date": max(run["date"] for run in runs)}


def _date(source: str) -> str:
    """The day that a source names; tests are run with every change."""
    day = re.search(r"20\d\d-\d\d-\d\d", source)
    return day[0] if day else "each CI run" if re.search(r"\btests? `", source) else ""

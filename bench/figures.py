"""Figures by name, out of docs/benchmarks/*.json, and rows of the table of promises that are filled from them."""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Iterator
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
    """`part.figure`, or `cpu.name.threads.figure`; KeyError for one that was not measured."""
    part, _, rest = name.partition(".")
    found = read(part)
    if found is None:
        raise KeyError(name)
    if part == "cpu":
        own, threads, column = rest.split(".")
        for facts in found["facts"]:
            if (facts.get("name"), facts["threads"]) == (own, int(threads)):
                return float(facts[CPU[column]])
        raise KeyError(name)
    return float((found["facts"] or {})[rest])


def tested(names: list[str]) -> Iterator[bool]:
    """Of each test whether it ran and did not fail; KeyError for one that no run has seen."""
    for name in names:
        found = read("checks")
        if found is None or name not in found["facts"]["tests"]:
            raise KeyError(name)
        result = found["facts"]["tests"][name]
        yield result["passed"] > 0 and not result["failed"]


def filled(row: dict[str, Any]) -> dict[str, str]:
    """A row as it is shown: asked, seen, held, source and date.

    A row with `limits` ([figure, sign, number]) and `tests` is judged by them, and has the commands and date of their
    run; until such a run has been, it shows what was seen `before`. A row without them says `why` no run can show it.
    """
    if "why" in row:
        return {**row, "source": f"{row['source']}; not in the run: {row['why']}" if row["source"] else row["why"]}
    limits, tests = row.get("limits", []), row.get("tests", [])
    parts = dict.fromkeys([name.partition(".")[0] for name, _, _ in limits] + (["checks"] if tests else []))
    try:
        seen = _FIELD.sub(lambda field: format(value(field[1]), field[2]), row["seen"])
        right = [SIGNS[sign](value(name), limit) for name, sign, limit in limits] + list(tested(tests))
    except KeyError as error:
        before = row.get("before", {"seen": f"`{error.args[0]}` was not measured", "held": "open", "date": ""})
        return {**row, "source": "", **before}
    runs = [read(part) for part in parts if part != "checks"]
    sources = [f"`{run['command']}`" for run in runs]
    sources += [f"test{'s' if len(tests) > 1 else ''} {', '.join(f'`{name}`' for name in tests)}"] if tests else []
    sources += [row["source"]] if row.get("source") else []
    held = "yes" if all(right) else "part" if any(right) else "no"
    return {
        **row,
        "seen": seen,
        "held": held,
        "source": "; ".join(sources),
        "date": max(read(p)["date"] for p in parts),
    }

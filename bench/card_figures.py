"""Figures by name out of the rows that `bench/card.py run` writes, for the rows of docs/benchmarks/asked.json."""

from __future__ import annotations

import re
import statistics
from typing import Any

Row = dict[str, Any]


def speed_figures(rows: list[Row]) -> dict[str, float]:
    """Of the card alone."""
    found: dict[str, float] = {}
    for row in (row for row in rows if row["part"] == "speed" and "kind" in row):
        own = f"{row['model'].replace(':', '_')}_{row['arithmetic']}_{row['kind']}"
        own += f"_{row['rows']}" if row["kind"] == "batch" else ""
        found[own] = row["tokens_per_second"]
        if row["kind"] == "batch":
            found[f"batch_{row['rows']}"] = row["of_batch_1"]
        if "attention_gb_per_s" in row:
            found["attention_gb_s"] = row["attention_gb_per_s"]
    starts = [row for row in rows if row["part"] == "start" and row["paris"] and not row["code"]]
    if starts:
        found["start_seconds"] = statistics.median(row["seconds"] for row in starts)
        found["start_runs"] = len(starts)
    for row in (row for row in rows if row["part"] == "greedy" and "alike" in row):
        name = "gemma3" if "gemma" in row["model"].lower() else "smollm2"
        found |= {f"{name}_{key}": row[key] for key in ("alike", "tokens", "whole", "texts", "largest_gap")}
    for row in (row for row in rows if row["part"] == "floor"):
        found |= {f"floor_{key}": row[key] for key in ("card_ms", "empty_ms", "kernels")}
    for row in (row for row in rows if row["part"] == "verify" and "rows_4" in row):
        found |= {f"verify_{key}": value for key, value in row.items() if key.startswith("rows_")}
    for row in (row for row in rows if row["part"] == "tests"):
        for count, word in re.findall(r"(\d+) (passed|failed|skipped|error)", row["summary"]):
            found[f"tests_{word}"] = float(count)
        found.setdefault("tests_failed", float(row["code"] != 0))
    return found


def hybrid_figures(rows: list[Row]) -> dict[str, float]:
    """Of a hybrid."""
    found: dict[str, float] = {}
    losses: dict[str, dict[str, float]] = {}
    for row in rows:
        part, what = row["part"], row["what"]
        if what == "round trip":
            found["trip_us"] = 1e6 * row["trip"]
        elif what.startswith("against the reference"):
            found[f"{part}_ratio"] = row["ratio"]
        elif what.endswith(": decode") and "half on the card" in what:
            found[f"{part}_tok_s"] = 1 / row["seconds"]
        elif what.endswith(": predicted"):
            found[f"{part}_of_predicted"] = row["of"]
        elif part == "mixture" and what.endswith("experts that have moved"):
            found["mixture_moved"] = row["ratio"]
        elif part == "mixture" and what.endswith("popular experts"):
            found["mixture_popular"] = row["ratio"]
        elif part == "budgets" and {"budget", "most"} <= set(row):
            over = row["most"] - row["budget"]  # what was held at any moment, and what is said to be used
            found["budgets"] = found.get("budgets", 0) + 1
            found["budgets_over"] = max(found.get("budgets_over", over), over)
        elif part == "kl" and "loss" in row:
            case, _, kind = what.rpartition(", ")
            losses.setdefault(case, {})[kind] = row["loss"]
    above = [
        own[kind] - max(own["CPU"], own["card"])
        for own in losses.values()
        if {"CPU", "card"} <= set(own)
        for kind in set(own) - {"CPU", "card"}
    ]
    if above:
        found["kl_above"], found["kl_models"] = max(above), float(len({case.split(",")[1] for case in losses}))
        found["kl_worst"] = max(value for own in losses.values() for value in own.values())
    return found

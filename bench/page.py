"""Make docs/benchmarks.md of the figures in docs/benchmarks/*.json: `python bench/page.py [--check]`.

`asked.json` holds what was asked for and what was seen, row by row, with the source of each figure; a row with limits
is filled and judged from the measured parts (`figures.py`). `fuzz.json` and `tests.json` hold what `bench/fuzz` and the
tests said; the other files are written by `bench/all.py`, `bench/soak.py` and, from a card's rows, `bench/card.py`.
`--check` writes nothing and fails when the page differs.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from figures import filled, read
from parts import PARTS

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
NAMES = tuple(part.name for part in PARTS)
ON_A_CARD = ("gpu", "hybrid")
MARKS = {"yes": "held", "no": "**missed**", "part": "in part", "open": "not measured"}
UNITS = {"rss_mb": "MB resident", "private_mb": "MB private", "threads": "threads", "handles": "file handles"}
INTRODUCTION = """# Benchmarks, and what was promised

Made by `python bench/page.py` of the figures in `docs/benchmarks/`; `python bench/all.py` measures them anew, and
`python bench/card.py` takes what was measured on a card. Every row says where its figure comes from. Tokens per second
mean little without the machine, so beside them stands the share of what its memory allows, measured in the same run.
"""


def speed_table(results: list[dict[str, Any]]) -> list[str]:
    """Tokens per second by model and thread count."""
    lines = ["| model | threads | prompt tok/s | answer tok/s | MB a token | GB/s | of the memory's GB/s |"]
    lines.append("|---|---|---|---|---|---|---|")
    for facts in results:
        used, most = facts["decode_tokens_per_second"] * facts["weight_bytes_per_token"], facts["memory_bandwidth"]
        name = f"{facts['model']}, all neurons" if facts["name"] == "dense" else facts["model"]
        lines.append(
            f"| {name} | {facts['threads']} | {facts['prefill_tokens_per_second']:,.0f} "
            f"| {facts['decode_tokens_per_second']:.0f} | {facts['weight_bytes_per_token'] / 1e6:.1f} "
            f"| {used / 1e9:.1f} | {used / most:.0%} of {most / 1e9:.1f} |"
        )
    return lines


def part(name: str) -> list[str]:
    """A measured part: what, when, where, with which command, and what came out."""
    facts = read(name)
    if facts is None:
        return []
    lines = ["", f"## {facts['title']}", "", f"`{facts['command']}`, {facts['date']}, {facts['machine']}.", ""]
    if "memory_gb_s" in facts:
        one, two = facts["memory_gb_s"]
        lines += [f"Before it one thread read {one} GB/s of memory, two {two}.", ""]
    if name == "cpu":
        note = "Prompts of 512 tokens, answers of 128, f16 KV, medians. The share counts all weights and no KV; a model"
        more = "with ReLU reads only the neurons that fire, so it can be above 100%. The memory's figure is the best of"
        last = "all runs."
        return [*lines, note, more, last, "", *speed_table(facts["facts"])]
    if "rows" in facts:
        return [*lines, *rows(facts["rows"])]
    return [*lines, "```", *facts["output"], "```"]


def rows(found: list[dict[str, Any]]) -> list[str]:
    """Rows of the scripts for a card: a table for each set of columns, in the order in which they came."""
    lines: list[str] = []
    before: tuple[str, ...] = ()
    for row in found:
        columns = ("part", "what", "value", "more") if "what" in row else tuple(row)
        if columns != before:
            gap = [""] if before else []
            lines += [*gap, f"| {' | '.join(columns).replace('_', ' ')} |", "|---" * len(columns) + "|"]
            before = columns
        lines.append(f"| {' | '.join(shown(row.get(column, '')) for column in columns)} |")
    return lines


def shown(value: Any) -> str:
    """A cell."""
    text = f"{value:,.5g}" if isinstance(value, float) else str(value)
    return text.replace("|", "/").replace("\n", " ")


def asked() -> list[str]:
    """The table of everything that was asked for."""
    table = read("asked")
    lines = ["", "## Asked and seen", "", *table["notes"]]
    issues = [(issue["title"], [filled(row) for row in issue["rows"]]) for issue in table["issues"]]
    counts = {mark: sum(row["held"] == mark for _, found in issues for row in found) for mark in MARKS}
    lines += ["", ", ".join(f"{counts[mark]} {words.strip('*')}" for mark, words in MARKS.items()) + "."]
    for title, found in issues:
        lines += ["", f"### {title}", "", "| asked | seen | | command, test or place | when |", "|---|---|---|---|---|"]
        for row in found:
            lines.append(f"| {row['asked']} | {row['seen']} | {MARKS[row['held']]} | {row['source']} | {row['date']} |")
    return lines


def soak() -> list[str]:
    """A long time of everything at once."""
    facts = read("soak")
    if facts is None:
        return []
    done = sum(count for what, count in facts["done"].items() if not what.startswith("served by"))
    lines = ["", "## A long time of everything at once", ""]
    lines += [
        f"`python bench/soak.py` on {facts['begun'][:10]}: {facts['minutes']:.0f} minutes, {done:,} actions of a chat",
        "and of three clients of a server (whole answers, several at once, clients that hang up or vanish, nonsense;",
        f"two models, in the server with room for one). Failures: {facts['failure'] or 'none'}.",
        "",
        "Flat means, and the run judges it itself: through the levels of ten minutes each (the 90th percentile of the",
        "samples, which is a process with a model in it) after ten minutes of warming up, no line of private",
        "memory rises by more than 1% an hour, and there are never more threads and handles at the end than before.",
        "",
        "| | | levels, ten minutes each | rise in an hour | flat |",
        "|---|---|---|---|---|",
    ]
    for who, found in facts["judged"].items():
        for key, unit in UNITS.items():
            own = found[key]
            right = own["percent_an_hour"] <= 1 if isinstance(own, dict) else own[-1] <= max(own[:-1])
            flat = "" if key == "rss_mb" else "yes" if right else "**no**"
            levels, rises = (own["levels"], f"{own['percent_an_hour']:+.2f}%") if isinstance(own, dict) else (own, "")
            lines.append(f"| {who} | {unit} | {', '.join(f'{level:.0f}' for level in levels)} | {rises} | {flat} |")
    return [*lines, "", *facts.get("notes", [])]


def fuzz() -> list[str]:
    """Random input to everything that reads what strangers wrote."""
    runs = read("fuzz")
    if runs is None:
        return []
    lines = ["", "## Random input", ""]
    lines += ["`python bench/fuzz AREA INPUT`: anything but an answer or an error in words is a finding.", ""]
    lines += ["| area | minutes | cases | refused in words | findings left |", "|---|---|---|---|---|"]
    for run in runs["runs"]:
        counts = f"{run['minutes']:.0f} | {run['cases']:,} | {run['refused']:,} | {len(run['findings'])}"
        lines.append(f"| {run['area']} | {counts} |")
    return [*lines, "", *runs["notes"]]


def tests() -> list[str]:
    """Tests, their time and what they cover."""
    facts = read("tests")
    if facts is None:
        return []
    counts = f"{facts['passed']:,} passed, {facts['skipped']} skipped, {facts['failed']} failed"
    minutes = f"{facts['seconds'] / 60:.1f} minutes with two workers ({facts['date']})."
    lines = ["", "## Tests", "", f"`.ci/run` in a fresh environment: {counts}, {minutes}", *facts["notes"]]
    lines += ["", "| package | statements | covered |", "|---|---|---|"]
    lines += [f"| `{name}` | {row['statements']:,} | {row['covered']:.0%} |" for name, row in facts["coverage"].items()]
    lines += ["", "The slowest tests of that run:", "", "| seconds | test |", "|---|---|"]
    return lines + [f"| {seconds} | `{name}` |" for seconds, name in facts["slowest"]]


def runs() -> list[str]:
    """Which parts one run of everything has measured, and which are of others."""
    found = {name: facts for name in NAMES if (facts := read(name)) is not None and "run" in facts}
    lines = []
    for run in sorted({facts["run"] for facts in found.values()}, reverse=True):
        own = {name: facts for name, facts in found.items() if facts["run"] == run}
        facts = next(iter(own.values()))
        minutes = sum(facts["seconds"] for facts in own.values()) / 60
        lines += ["", f"Run of {run.replace('T', ' ')}, commit {facts['commit']}, {facts['machine']}: {len(own)} of"]
        lines += [f"{len(NAMES)} parts, {minutes:.0f} minutes ({', '.join(own)})."]
    return lines


def page() -> str:
    """The whole document."""
    lines = [*INTRODUCTION.splitlines(), *runs()]
    for name in (*NAMES, *ON_A_CARD):
        lines += part(name)
    return "\n".join([*lines, *asked(), *soak(), *fuzz(), *tests()]) + "\n"


def main() -> None:
    """Write the page, or compare it."""
    made = page()
    if "--check" not in sys.argv:
        PAGE.write_text(made, encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != made:
        raise SystemExit("docs/benchmarks.md differs from docs/benchmarks/*.json: run python bench/page.py")


if __name__ == "__main__":
    main()

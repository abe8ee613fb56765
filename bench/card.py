"""Put what was measured on a card into docs/benchmarks: the rows that two scripts write there.

    python bench/card.py gpu ROWS --machine "NVIDIA H200, 16 cores" [--command "python scripts/gpu_benchmark.py"]
    python bench/card.py hybrid ROWS MORE_ROWS --machine "..." --date 2026-11-30

ROWS is what `scripts/gpu_benchmark.py` printed, or what `scripts/hybrid_benchmark.py --out` wrote: lines that are JSON
objects are rows, others are left. `-` reads standard input. Then `python bench/page.py` makes the page.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from pathlib import Path
from typing import Any

from figures import FIGURES

TITLES = {
    "gpu": ("On a card", "python scripts/gpu_benchmark.py"),
    "hybrid": ("On a card and the CPU", "python scripts/hybrid_benchmark.py"),
}


def rows_of(text: str) -> list[dict[str, Any]]:
    """The objects among the lines."""
    found = []
    for line in text.splitlines():
        if line.strip().startswith("{"):
            try:
                found.append(json.loads(line))
            except ValueError:
                continue  # a line that was cut when its time was over
    return found


def main() -> None:
    """Read, write, say how many."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=sorted(TITLES))
    parser.add_argument("rows", nargs="+", help="a file for each call of the card, in order; - is standard input")
    parser.add_argument("--machine", required=True)
    parser.add_argument("--command")
    parser.add_argument("--date", default=datetime.date.today().isoformat())
    options = parser.parse_args()
    texts = [sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8") for name in options.rows]
    title, command = TITLES[options.name]
    calls = [rows_of(text) for text in texts]
    if not all(calls):
        raise SystemExit(f"{options.rows[calls.index([])]} holds no row")
    facts = {
        "title": title,
        "command": options.command or command,
        "date": options.date,
        "machine": options.machine,
        "calls": calls,
    }
    (FIGURES / f"{options.name}.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    print(f"{sum(map(len, calls))} rows")


if __name__ == "__main__":
    main()

"""Put what `.ci/run` said of the tests, and what they cover, into docs/benchmarks/tests.json.

    .ci/run 2>&1 | tee ci.log; python bench/tests.py ci.log
    python -m coverage json -o coverage.json; python bench/tests.py ci.log coverage.json [--only kernels]

Of a coverage report the packages whose names begin with `--only` are taken over (all, if it is not given), the others
stay as they were. `source` of the coverage run: localllm, kernels, gguf_io, tui.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

from figures import FIGURES, read

_END = re.compile(r"=+ (?:(\d+) failed, )?(\d+) passed(?:, (\d+) skipped)?.* in ([\d.]+)s")
_SLOW = re.compile(r"^([\d.]+)s (?:call|setup|teardown) +(\S.*)$", re.MULTILINE)


def run_of(log: str) -> dict[str, Any]:
    """Counts, minutes and the slowest tests of a run's output."""
    end = _END.search(log)
    if end is None:
        raise SystemExit("the log has no line that says how many tests passed")
    failed, passed, skipped = (int(count or 0) for count in end.groups()[:3])
    slowest = [[float(seconds), name] for seconds, name in _SLOW.findall(log)][:10]
    return {"passed": passed, "skipped": skipped, "failed": failed, "seconds": float(end[4]), "slowest": slowest}


def packages_of(report: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Statements and their covered share by package: the first two folders of a file."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for name, file in report["files"].items():
        folders = Path(name).parts[:-1]
        count = counts["/".join(folders[:2])]
        count[0] += file["summary"]["num_statements"]
        count[1] += file["summary"]["covered_lines"]
    return {name: {"statements": all_, "covered": round(hit / max(1, all_), 4)} for name, (all_, hit) in counts.items()}


def main() -> None:
    """Read, merge, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=Path)
    parser.add_argument("coverage", type=Path, nargs="?")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    facts = read("tests") or {"coverage": {}, "notes": []}
    day = datetime.date.fromtimestamp(options.log.stat().st_mtime).isoformat()
    facts |= {"date": day, **run_of(options.log.read_text(encoding="utf-8", errors="replace"))}
    if options.coverage:
        found = packages_of(json.loads(options.coverage.read_text(encoding="utf-8")))
        facts["coverage"] |= {name: row for name, row in found.items() if name.startswith(options.only)}
        facts["coverage"] = dict(sorted(facts["coverage"].items()))
    (FIGURES / "tests.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""Run the tests that rows of docs/benchmarks/asked.json name, and keep what came out and what they measured.

    python bench/checks.py [--quick] [--json FILE]

A test of a figure writes it with pytest's `record_property`. LOCALLLM_FIXTURES and LOCALLLM_TEST_MODELS say where the
large golden data and the real models are; without them those tests are skipped, and their rows are not held. Needs
`pip install -e '.[dev]'`. `--quick` runs the fastest few only.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from pathlib import Path

from figures import read

ROOT = Path(__file__).resolve().parents[1]
QUICK = 6  # tests


def named() -> list[str]:
    """All tests that rows name, once each; a function of a file that is named whole is left to it."""
    rows = [row for issue in read("asked")["issues"] for row in issue["rows"]]
    names = list(dict.fromkeys(name for row in rows for name in row.get("tests", ())))
    return [name for name in names if "::" not in name or name.partition("::")[0] not in names]


def outcome(case: ElementTree.Element) -> str:
    """passed, skipped or failed."""
    kinds = {child.tag for child in case}
    return "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"


def found(report: Path) -> tuple[dict[str, dict[str, int]], dict[str, float]]:
    """Counts by file and by file::function, and the recorded figures by name."""
    counts: dict[str, dict[str, int]] = defaultdict(lambda: {"passed": 0, "skipped": 0, "failed": 0})
    figures = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        file = case.get("classname", "").replace(".", "/") + ".py"
        for name in (file, f"{file}::{case.get('name', '').partition('[')[0]}"):
            counts[name][outcome(case)] += 1
        for entry in case.iter("property"):
            figures[entry.get("name", "")] = float(entry.get("value", "nan"))
    return dict(counts), figures


def main() -> None:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    wanted = named()[: QUICK if options.quick else None]
    with tempfile.TemporaryDirectory(prefix="localllm-checks-") as folder:
        report = Path(folder) / "report.xml"
        command = [
            sys.executable,
            "-P",
            "-m",
            "pytest",
            "-q",
            "-n",
            "2",
            "--dist",
            "loadfile",
            "-p",
            "no:cacheprovider",
        ]
        command += [f"--junitxml={report}", f"--basetemp={folder}/tests", "-o", "junit_family=xunit1", *wanted]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if not report.exists():
            raise SystemExit(f"pytest wrote no report:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
        counts, figures = found(report)
    print(done.stdout.strip().splitlines()[-1].strip("= "))
    for name in (name for name, result in counts.items() if result["failed"]):
        print(f"FAILED {name}")
    for name, value in figures.items():
        print(f"{name:30} {value:.6g}")
    if options.json:
        options.json.write_text(json.dumps(figures | {"tests": counts}), encoding="utf-8")


if __name__ == "__main__":
    main()

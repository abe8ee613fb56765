"""docs/benchmarks.md is what its figures give, and the tests that it names as sources are there."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]


def test_the_page_is_made_of_its_figures() -> None:
    command = [sys.executable, "bench/page.py", "--check"]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_row_has_a_source_that_exists() -> None:
    table = json.loads((_ROOT / "docs" / "benchmarks" / "asked.json").read_text(encoding="utf-8"))
    rows = [row for issue in table["issues"] for row in issue["rows"]]
    assert len(rows) > 50
    parts = {*(part.name for part in runpy.run_path(str(_ROOT / "bench" / "parts.py"))["PARTS"]), "gpu", "hybrid"}
    for row in rows:
        judged = {"limits", "tests"} & set(row)
        if "why" in row:  # no run can show it
            assert set(row) == {"asked", "seen", "held", "source", "date", "why"}, row
            assert row["why"], row
            assert row["held"] in ("yes", "no", "part", "open"), row
        else:  # judged, dated and sourced by its figures and tests
            assert judged, row
            assert set(row) <= {"asked", "seen", "source", "before"} | judged, row
        for name, sign, number in row.get("limits", ()):
            assert name.partition(".")[0] in parts, name
            assert sign in ("<", "<=", ">", ">=")
            assert isinstance(number, int | float)
        named = re.findall(r"`((?:tests|scripts|bench)/[^` ]+)", row.get("source", ""))
        for name in [*named, *row.get("tests", ())]:
            file, _, function = name.partition("::")
            assert (_ROOT / file).exists(), name
            assert not function or f"def {function}" in (_ROOT / file).read_text(encoding="utf-8"), name
        for link in re.findall(r"\]\(([^)#]+)", row.get("source", "")):
            assert (_ROOT / "docs" / link).exists(), link


def test_no_figure_names_a_folder_of_the_machine_that_made_it() -> None:
    for path in [*(_ROOT / "docs" / "benchmarks").glob("*.json"), *(_ROOT / "docs").glob("*.md")]:
        assert not re.search(r"/(?:tmp|work|root|home/\w+)/", path.read_text(encoding="utf-8")), path

"""docs/architectures.md says what the fixtures show."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]


def test_the_table_is_what_the_fixtures_give() -> None:
    command = [sys.executable, "tests/tools/architecture_table.py", "--check"]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


def test_every_fixture_is_right_on_every_device() -> None:
    """The numbers of the slow columns are made by the same command; the tests of each device run the same files."""
    document = (_ROOT / "docs" / "architectures.md").read_text(encoding="utf-8")
    rows = [line.strip(" |").split("|") for line in document.splitlines() if line.startswith("| `")]
    assert len(rows) > 50
    for row in rows:
        counts = {cell.strip() for cell in row[-3:]}
        number = counts.pop().split(" of ")
        assert not counts, row
        assert number[0] == number[1], row

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

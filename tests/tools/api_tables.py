"""Writes the tables of fields into docs/api.md: python tests/tools/api_tables.py. A test compares the two."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MARK = "<!-- made by tests/tools/api_tables.py -->\n"

if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    from localllm.server.openapi import parameter_tables

    page = ROOT / "docs" / "api.md"
    before, mark, _ = page.read_text(encoding="utf-8").partition(MARK)
    page.write_text(f"{before}{mark}\n{parameter_tables()}", encoding="utf-8")

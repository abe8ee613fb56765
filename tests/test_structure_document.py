"""docs/structure.md names every package, and no other."""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent


def test_every_package_has_its_sentence() -> None:
    rows = re.findall(r"^\| `([\w/]+)` \| \w", (REPOSITORY / "docs" / "structure.md").read_text("utf-8"), re.MULTILINE)
    roots = [REPOSITORY / name for name in ("gguf_io", "kernels", "localllm", "tui")]
    packages = {
        folder.relative_to(REPOSITORY).as_posix()
        for root in roots
        for folder in (found.parent for found in root.rglob("__init__.py"))
        if not any(place.is_symlink() for place in (folder, *folder.parents))
    }
    assert sorted(rows) == sorted(packages - {"localllm"})

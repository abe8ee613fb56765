"""Every fixture on the CPU within its tolerance, whatever the grouping of rows and the number of threads."""

from __future__ import annotations

from pathlib import Path

import pytest
from golden_cpu import check_golden, golden_names

_DATA = Path(__file__).resolve().parents[2] / "data" / "models"


@pytest.mark.parametrize("path", sorted(_DATA.glob("*.gguf")), ids=lambda path: path.stem)
def test_the_fixtures_that_travel_with_the_repository(path: Path) -> None:
    check_golden(path)


@pytest.mark.parametrize("name", golden_names("arch"))
def test_architectures(name: str, shared_fixtures: Path) -> None:
    check_golden(shared_fixtures / "golden" / "arch" / f"{name}.gguf")

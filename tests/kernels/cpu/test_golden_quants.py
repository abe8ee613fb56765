"""A golden file of every quant type on the CPU; in a file of its own, since each compiles kernels for seconds."""

from __future__ import annotations

from pathlib import Path

import pytest
from golden_cpu import check_golden, golden_names


@pytest.mark.parametrize("name", golden_names("quant"))
def test_quant_types(name: str, shared_fixtures: Path) -> None:
    check_golden(shared_fixtures / "golden" / "quant" / f"{name}.gguf")

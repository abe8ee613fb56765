"""What tests of commands share: nothing to read on standard input, and a tiny model."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def nothing_is_piped(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with Path(os.devnull).open(encoding="utf-8") as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        yield


@pytest.fixture
def tiny(data_folder: Path) -> str:
    return str(data_folder / "models" / "llama_gqa_tied_f16.gguf")

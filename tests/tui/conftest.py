"""A stage for the chat app."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from app_driver import Stage


@pytest.fixture
def stage(tmp_path: Path, private_home: Path) -> Callable[..., Stage]:
    """Makes a stage with a script."""
    return lambda *pieces, **options: Stage(tmp_path / "home", *pieces, **options)

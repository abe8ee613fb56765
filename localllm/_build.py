"""Build step: ship `models.toml`, which stands beside the packages, inside the `localllm` package."""

from __future__ import annotations

from pathlib import Path

from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent.parent
CATALOGUE = "models.toml"


class BuildPy(build_py):
    """`build_py` that copies the catalogue; an editable install reads it from the checkout instead."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            self.copy_file(str(ROOT / CATALOGUE), str(Path(self.build_lib) / "localllm" / CATALOGUE))

    def get_source_files(self) -> list[str]:
        return [*super().get_source_files(), CATALOGUE]

"""The sdist and the wheel: built, unpacked and run outside the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.skipif(not (ROOT / "pyproject.toml").exists(), reason="needs the source tree")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and the wheel made from it."""
    folder = tmp_path_factory.mktemp("dist")
    checkout = tmp_path_factory.mktemp("checkout") / "localllm"
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if files.returncode:
        pytest.skip("needs a git checkout to know which files belong to it")
    subprocess.run(["git", "clone", "-q", str(ROOT), str(checkout)], check=True, capture_output=True)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(checkout)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_both_carry_every_package_the_catalogue_and_the_licence(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    for wanted in (
        "localllm/__init__.py",
        "localllm/gguf_io/tensor.py",
        "localllm/kernels/spec.py",
        "localllm/models.toml",
    ):
        assert wanted in names
    assert "localllm/tui/__init__.py" in names
    assert "localllm/py.typed" in names
    assert not [name for name in names if name.startswith(("tests/", "kernels/", "gguf_io/", "tui/"))]
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as tar:
        inside = tar.getnames()
    assert any(name.endswith("/models.toml") for name in inside)
    assert any(name.endswith("/LICENSE") for name in inside)


def test_the_wheel_runs_outside_the_checkout(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    command = [sys.executable, "-m", "localllm", "--version"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("localllm, version ")
    where = [sys.executable, "-c", "import localllm.kernels.spec as m; print(m.__file__)"]
    done = subprocess.run(where, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(str(tmp_path / "site"))

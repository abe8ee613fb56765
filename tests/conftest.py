"""Shared fixtures: a private home for every test, the folder of golden data, and the two small real models."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs
import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says something about the machine, nothing about the code.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

DATA = Path(__file__).resolve().parent / "data"


@pytest.fixture(autouse=True)
def private_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test reads or writes the models, settings and chats of the person who runs it."""
    home = tmp_path / "home"
    cache = os.environ.get("LOCALLLM_CACHE_DIR") or platformdirs.user_cache_dir("localllm")
    monkeypatch.setenv("LOCALLLM_CACHE_DIR", cache)  # compiled kernels are kept from run to run
    monkeypatch.setenv("LOCALLLM_HOME", str(home))
    for name in ("HF_TOKEN", "HF_ENDPOINT", "LOCALLLM_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    return home


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """Small fixtures that travel with the repository."""
    return DATA


@pytest.fixture(scope="session")
def shared_fixtures() -> Path:
    """The large golden data, found through LOCALLLM_FIXTURES; without it the test is skipped."""
    folder = os.environ.get("LOCALLLM_FIXTURES")
    if not folder:
        pytest.skip("LOCALLLM_FIXTURES is not set: the large golden data is not here")
    return Path(folder)


def _real_model(name: str, file: str) -> Path:
    folder = os.environ.get("LOCALLLM_TEST_MODELS")
    if not folder:
        pytest.skip(f"LOCALLLM_TEST_MODELS is not set: no folder that holds {name}")
    path = Path(folder) / file
    if not path.exists():
        pytest.skip(f"{file} is not in LOCALLLM_TEST_MODELS ({name} could not be fetched)")
    return path


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The real SmolLM2-135M-Instruct (Q4_1), 98 MB."""
    return _real_model("smollm2:135m", "SmolLM2-135M-Instruct.Q4_1.gguf")


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    """The real Gemma-3-270M (Q4_K_M), 253 MB."""
    return _real_model("gemma3:270m", "gemma-3-270m-q4_k_m.gguf")


@pytest.fixture(scope="session")
def relu_path(shared_fixtures: Path) -> Path:
    """A real model with ReLU-gated layers, 92 MB."""
    path = shared_fixtures / "models" / "SmolLM2-135M-Instruct-ReLU.Q4_0.gguf"
    if not path.exists():
        pytest.skip("the ReLU model is not among LOCALLLM_FIXTURES")
    return path

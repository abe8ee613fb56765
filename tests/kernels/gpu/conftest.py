"""The GPU kernels run on a card where there is one, and through Triton's interpreter elsewhere."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np
import pytest

if TYPE_CHECKING:
    from localllm.kernels.gpu.device import Gpu

if find_spec("torch") is not None:  # without it, or without triton, every module here skips itself and says so
    import torch

    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(scope="session")
def gpu() -> Gpu:
    from localllm.kernels.gpu.device import open_gpu

    return open_gpu()


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(5)

"""Which layers run sparse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from localllm.kernels.cpu.modes import sparse_layers, worthwhile_density
from localllm.kernels.spec import Activation, Layer


def test_layers_whose_neurons_fire_too_often_run_dense(
    spec_maker: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    maker = spec_maker()
    spec = maker.model(*(Layer(maker.attention(), maker.feed_forward(activation=Activation.RELU)) for _ in range(3)))
    limit = worthwhile_density(spec.hidden_size)
    rates = (np.full(96, limit - 0.01), np.full(96, limit + 0.01), None)
    caplog.set_level("INFO")
    assert sparse_layers(spec, None) == {0, 1, 2}
    assert sparse_layers(spec, None, rates) == {0, 2}
    assert "1 layers run dense" in caplog.text
    assert sparse_layers(spec, "sparse", rates) == {0, 1, 2}
    assert sparse_layers(spec, "exact", rates) == frozenset()


def test_long_records_pay_at_a_higher_density() -> None:
    assert worthwhile_density(576) < worthwhile_density(4096) == worthwhile_density(8192) < 0.5

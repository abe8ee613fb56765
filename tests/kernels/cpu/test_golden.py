"""Every golden file within its tolerance on the CPU, the same bits for any grouping of rows and any thread count."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from localllm.gguf_io import QuantType, open_gguf
from localllm.kernels.cpu.executor import CpuExecutor
from localllm.kernels.executor import ExecutorOptions
from localllm.kernels.single_sequence import logits_of
from localllm.kernels.spec import MixtureOfExperts
from localllm.models import load_spec

_DATA = Path(__file__).resolve().parents[2] / "data" / "models"
_PLAIN = {QuantType.F32, QuantType.F16, QuantType.BF16}


def _check(path: Path) -> None:
    golden = np.load(path.with_suffix(".npz"))
    exact = golden["logits_exact"] if "logits_exact" in golden else golden["logits"]
    file = open_gguf(path)
    quantised = any(tensor.quant_type not in _PLAIN for tensor in file.tensors.values())
    spec = load_spec(file)
    mixture = any(isinstance(layer.feed_forward, MixtureOfExperts) for layer in spec.layers)
    executor = CpuExecutor(spec, ExecutorOptions(threads=2))
    other = CpuExecutor(spec, ExecutorOptions(threads=1))
    try:
        whole = logits_of(executor, golden["tokens"])
        difference = whole - exact
        if quantised:
            if mixture:  # rounding may turn a near-tie of the router: forgive one row in twenty
                rows = np.argsort((difference**2).mean(axis=1))
                difference = difference[rows[: len(rows) - max(1, len(rows) // 20)]]
            assert np.sqrt((difference**2).mean()) / exact.std() <= 0.05
            assert np.abs(difference).max() <= 0.8
        else:
            assert np.abs(difference).max() <= 5e-4
        np.testing.assert_array_equal(logits_of(executor, golden["tokens"], chunk=1), whole)
        np.testing.assert_array_equal(logits_of(other, golden["tokens"], chunk=9), whole)
    finally:
        executor.close()
        other.close()


@pytest.mark.parametrize("path", sorted(_DATA.glob("*.gguf")), ids=lambda path: path.stem)
def test_the_fixtures_that_travel_with_the_repository(path: Path) -> None:
    _check(path)


@pytest.mark.parametrize("folder", ["arch", "quant"])
def test_all_golden_files(folder: str, shared_fixtures: Path) -> None:
    paths = sorted((shared_fixtures / "golden" / folder).glob("*.gguf"))
    assert paths
    failures = []
    for path in paths:
        try:
            _check(path)
        except AssertionError as error:
            failures.append(f"{path.stem}: {error}")
    assert not failures

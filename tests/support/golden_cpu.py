"""A golden file within its tolerance on the CPU, the same bits for any grouping of rows and any thread count."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from localllm.gguf_io import QuantType, open_gguf
from localllm.kernels.cpu.executor import CpuExecutor
from localllm.kernels.executor import ExecutorOptions
from localllm.kernels.single_sequence import logits_of
from localllm.kernels.spec import MixtureOfExperts
from localllm.models import load_spec

_PLAIN = {QuantType.F32, QuantType.F16, QuantType.BF16}


def golden_names(folder: str) -> list[str]:
    """The files of a folder of the shared golden data, a test each; one name, to be skipped, when they are not here."""
    fixtures = os.environ.get("LOCALLLM_FIXTURES")
    names = [path.stem for path in Path(fixtures, "golden", folder).glob("*.gguf")] if fixtures else []
    return sorted(names) or ["all"]


def check_golden(path: Path) -> None:
    """The logits of `path`, compared with those in the .npz beside it."""
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

"""Frequencies and magnitudes of every context scaling, against the formulas of the papers written out."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from localllm.gguf_io import QuantType, open_gguf, write_gguf
from localllm.kernels.spec import Rope
from localllm.models.parts.rope import read_rope
from localllm.models.parts.source import Source

_DATA = Path(__file__).resolve().parents[2] / "data" / "models"
_PLAIN = 10000.0 ** (-np.arange(16) / 16)


def _rope(folder: Path, **keys: float | str) -> Rope:
    metadata = {"x." + key.replace("__", "."): value for key, value in keys.items()}
    path = folder / "rope.gguf"
    write_gguf(path, {"general.architecture": "x", "x.context_length": 4096, **metadata}, {})
    rope = read_rope(Source(open_gguf(path), "x", None), 32, interleaved=True)
    assert rope is not None
    return rope


def test_plain_and_linear(tmp_path: Path) -> None:
    plain = _rope(tmp_path)
    np.testing.assert_allclose(plain.inverse_frequencies, _PLAIN, rtol=1e-15)
    assert (plain.dimensions, plain.magnitude, plain.interleaved) == (32, 1.0, True)
    stated = _rope(tmp_path, rope__scaling__type="linear", rope__scaling__factor=4.0)
    for rope in (stated, _rope(tmp_path, rope__scale_linear=4.0)):
        np.testing.assert_allclose(rope.inverse_frequencies, _PLAIN / 4, rtol=1e-15)


def test_yarn(tmp_path: Path) -> None:
    """Pairs that turn more than 32 times in the original context keep their frequency, slow ones are divided."""
    keys: dict[str, float | str] = {
        "rope__scaling__type": "yarn",
        "rope__scaling__factor": 4.0,
        "rope__scaling__original_context_length": 1024,
    }
    rope = _rope(tmp_path, **keys)
    turns = 1024 * _PLAIN / (2 * math.pi)
    kept = turns > 64
    slow = turns < 0.5
    assert kept.any()
    assert slow.any()
    np.testing.assert_allclose(rope.inverse_frequencies[kept], _PLAIN[kept], rtol=1e-15)
    np.testing.assert_allclose(rope.inverse_frequencies[slow], _PLAIN[slow] / 4, rtol=1e-15)
    between = rope.inverse_frequencies / _PLAIN
    assert (np.diff(between) <= 1e-12).all()
    assert rope.magnitude == pytest.approx(1 + 0.1 * math.log(4))
    assert _rope(tmp_path, **keys, rope__scaling__yarn_log_multiplier=1.0).magnitude == pytest.approx(1)


def test_longrope_factors_follow_the_context() -> None:
    file = open_gguf(_DATA / "phi3.gguf")
    plain = 10000.0 ** (-np.arange(4) / 4)
    for context, factors in ((None, [1, 1.1, 1.3, 1.6]), (64, [1, 1.1, 1.3, 1.6]), (65, [1, 2, 4, 8])):
        rope = read_rope(Source(file, "phi3", context), 8, interleaved=False)
        assert rope is not None
        np.testing.assert_allclose(rope.inverse_frequencies, plain / factors, rtol=1e-6)
        assert rope.magnitude == pytest.approx(1.1)


def test_frequency_divisors(tmp_path: Path) -> None:
    divisors = np.linspace(1, 8, 16, dtype=np.float32)
    path = tmp_path / "rope.gguf"
    write_gguf(path, {"general.architecture": "x"}, {"rope_freqs.weight": (QuantType.F32, (16,), divisors)})
    rope = read_rope(Source(open_gguf(path), "x", None), 32, interleaved=False)
    assert rope is not None
    np.testing.assert_allclose(rope.inverse_frequencies, _PLAIN / divisors, rtol=1e-15)


def test_no_dimensions_no_rope(tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.gguf", {"general.architecture": "x"}, {})
    assert read_rope(Source(open_gguf(tmp_path / "a.gguf"), "x", None), 0, interleaved=False) is None

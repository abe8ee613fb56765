"""Sketches against numpy, and against what the kernel makes of them."""

from __future__ import annotations

import numpy as np
import pytest

from localllm.gguf_io import QuantType, Tensor, dequantize, quantize
from localllm.turbo.sketch import coarse_logits, fit_shortlist, fit_sketch, sketched


def _inputs(tokens: int, width: int, seed: int = 1) -> np.ndarray:
    """Inputs of which a few are far larger than the others, about a mean that is not zero."""
    rng = np.random.default_rng(seed)
    size = np.exp(rng.standard_normal(width))
    return ((rng.standard_normal((tokens, width)) + 0.5) * size).astype(np.float32)


@pytest.mark.parametrize("width", [20, 32, 200])
def test_a_sketch_is_nearer_than_signs(width: int) -> None:
    rng = np.random.default_rng(3)
    weight = rng.standard_normal((50, width)).astype(np.float32)
    bias = rng.standard_normal(50).astype(np.float32)
    x, other = _inputs(400, width), _inputs(200, width, 9)
    sketch = fit_sketch(weight, x, bias)
    assert sketch.inputs.shape == (32,)
    exact = other @ weight.T + bias
    errors = [
        ((scores - exact) ** 2).mean()
        for scores in (sketched(sketch, weight, other), (other @ np.sign(weight).T) * np.abs(weight).mean(1)[:, None].T)
    ]
    assert errors[0] < 0.95 * errors[1]
    assert np.corrcoef(sketched(sketch, weight, other).reshape(-1), exact.reshape(-1))[0, 1] > 0.8


def test_a_coarse_head_is_corrected() -> None:
    rng = np.random.default_rng(4)
    values = rng.standard_normal((96, 64)).astype(np.float32)
    head = Tensor("head", QuantType.Q8_0, (96, 64), quantize(values, QuantType.Q8_0))
    hidden, other = _inputs(300, 64), _inputs(100, 64, 8)
    shortlist = fit_shortlist(head, hidden)
    exact = other @ np.asarray(dequantize(head)).T
    coarse = np.asarray(
        dequantize(Tensor("coarse", QuantType.Q4_0, (96, 64), quantize(dequantize(head), QuantType.Q4_0)))
    )
    plain, corrected = other @ coarse.T, coarse_logits(shortlist, head, other)
    assert ((corrected - exact) ** 2).mean() < 0.3 * ((plain - exact) ** 2).mean()


def test_a_matrix_of_zeros_and_inputs_of_zeros() -> None:
    sketch = fit_sketch(np.zeros((8, 40), np.float32), np.zeros((10, 40), np.float32))
    assert np.isfinite(sketch.scales).all()
    np.testing.assert_array_equal(sketched(sketch, np.zeros((8, 40), np.float32), np.ones((3, 40), np.float32)), 0)

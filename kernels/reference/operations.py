"""Norms, activations, rope and soft caps on arrays of any leading shape."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from localllm.kernels.spec import Activation

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from localllm.kernels.spec import Norm, Rope

    from .weights import Real, Weights

_erf = np.vectorize(math.erf, otypes=[np.float64])


def normalise(x: Real, norm: Norm, weights: Weights) -> Real:
    """RMS norm (https://arxiv.org/abs/1910.07467) or layer norm (https://arxiv.org/abs/1607.06450), last dimension."""
    if norm.subtract_mean:
        x = x - x.mean(axis=-1, keepdims=True)
    x = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + x.dtype.type(norm.eps))
    if norm.weight is not None:
        x = x * weights.array(norm.weight)
    return x if norm.bias is None else x + weights.array(norm.bias)


def softcap(x: Real, cap: float | None) -> Real:
    """cap * tanh(x / cap), or x without a cap."""
    return x if cap is None else x.dtype.type(cap) * np.tanh(x / x.dtype.type(cap))


def softmax(x: Real) -> Real:
    """Over the last dimension; -inf gives exactly 0."""
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    shares: Real = powers / powers.sum(axis=-1, keepdims=True)
    return shares


def sigmoid(x: Real) -> Real:
    """1 / (1 + exp(-x)) without overflow."""
    small = np.exp(-np.abs(x))
    y: Real = np.where(x >= 0, 1, small) / (1 + small)
    return y


def activate(activation: Activation, gate: Real, up: Real | None) -> Real:
    """activation(gate) * up, or activation(gate) without `up`."""
    if activation is Activation.SWIGLU_CLAMPED:
        gate = np.minimum(gate, 7)
        up = None if up is None else np.clip(up, -7, 7) + 1
    elif activation is Activation.RELU_BOTH and up is not None:
        up = np.maximum(up, 0)
    y: Real = _NONLINEAR[activation](gate).astype(gate.dtype)
    return y if up is None else y * up


_NONLINEAR: dict[Activation, Callable[[Real], Real]] = {
    Activation.SILU: lambda x: x * sigmoid(x),
    Activation.GELU: lambda x: 0.5 * x * (1 + _erf(x * math.sqrt(0.5))),
    Activation.GELU_TANH: lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    Activation.RELU: lambda x: np.maximum(x, 0),
    Activation.RELU_SQUARED: lambda x: np.square(np.maximum(x, 0)),
    Activation.RELU_BOTH: lambda x: np.maximum(x, 0),
    Activation.SWIGLU_CLAMPED: lambda x: x * sigmoid(1.702 * x),
}


def rotate(x: Real, positions: npt.NDArray[np.int64], rope: Rope | None) -> Real:
    """Rotate the first `rope.dimensions` values of every head of x [M, heads, dimensions] by its row's position.

    Angles are computed in float64, so a position of ten million is as exact as the first.
    """
    if rope is None:
        return x
    angles = positions[:, None, None].astype(np.float64) * rope.inverse_frequencies
    cos = (np.cos(angles) * rope.magnitude).astype(x.dtype)
    sin = (np.sin(angles) * rope.magnitude).astype(x.dtype)
    half = len(rope.inverse_frequencies)
    first = slice(0, 2 * half, 2) if rope.interleaved else slice(0, half)
    second = slice(1, 2 * half, 2) if rope.interleaved else slice(half, 2 * half)
    a, b = x[..., first], x[..., second]
    y = x.copy()
    y[..., first] = a * cos - b * sin
    y[..., second] = a * sin + b * cos
    return y

"""Coarse forms of matrices, fitted to what a model really reads: one bit a weight, or four."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from localllm.gguf_io import QuantType, Tensor, dequantize, quantize
from localllm.kernels.cpu.lower_shortlist import coarse_head
from localllm.kernels.turbo import EXTRA_INPUTS, Shortlist, Sketch

if TYPE_CHECKING:
    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]
    Floats = npt.NDArray[np.float32]

_RIDGE = 0.02  # of the mean variance of an input, added to each: a text shows only some directions
_ROWS_AT_ONCE = 8192


def covariance(x: Floats) -> Floats:
    """The second moments [width, width] of rows x, with a ridge."""
    moments = (x.T @ x) / np.float32(max(1, len(x)))
    ridge = _RIDGE * max(float(np.trace(moments)), 1e-12) / len(moments)
    return np.asarray(moments + np.eye(len(moments), dtype=np.float32) * np.float32(ridge), np.float32)


def fit_sketch(weight: Floats, x: Floats, bias: Floats | None = None) -> Sketch:
    """The signs of a matrix [neurons, width] and what brings their products nearest to weight . x + bias.

    Each row has one scale; the 32 inputs for which the signs are most wrong are corrected by weights of their own, as a
    least-squares fit over the inputs x [T, width] gives them, and what is left on average is in the bias.
    """
    moments = covariance(x)
    signs = np.where(weight >= 0, np.float32(1), np.float32(-1))
    along = signs @ moments
    scales = (weight * along).sum(1) / np.maximum((signs * along).sum(1), np.float32(1e-30))
    rest = weight - scales[:, None] * signs
    inputs, own, extra = _corrected(rest, moments)
    rest[:, own] -= _floats("extra", extra, EXTRA_INPUTS)[:, : len(own)]
    constant = rest @ x.mean(axis=0) + (0 if bias is None else bias)
    return Sketch(scales.astype(np.float32), constant.astype(np.float32), inputs.astype(np.int32), extra)


def sketched(sketch: Sketch, weight: Floats, x: Floats) -> Floats:
    """The scores [T, neurons] of inputs x, in float32."""
    signs = np.where(weight >= 0, np.float32(1), np.float32(-1))
    extra = _floats("extra", sketch.extra, EXTRA_INPUTS)
    scores: Floats = (x @ signs.T) * sketch.scales + x[:, sketch.inputs] @ extra.T + sketch.bias
    return scores


def _corrected(rest: Floats, moments: Floats) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], Bytes]:
    """The inputs that account best for rest . x, those of them that differ, and their weights as Q8_0."""
    wrong = np.diag(moments) * (rest**2).sum(0)
    inputs = np.sort(np.argsort(-wrong, kind="stable")[:EXTRA_INPUTS])
    own = inputs
    inputs = np.resize(inputs, EXTRA_INPUTS)  # a narrower model: some inputs twice, the second time with weight 0
    fitted = np.zeros((len(rest), EXTRA_INPUTS), np.float32)
    fitted[:, : len(own)] = np.linalg.solve(moments[np.ix_(own, own)], moments[own] @ rest.T).T
    return inputs, own, quantize(fitted, QuantType.Q8_0)


def fit_shortlist(head: Tensor, hidden: Floats) -> Shortlist:
    """What corrects a coarse head best for hidden vectors [T, width]; the margin is still 0."""
    coarse = coarse_head(head)
    rest = np.concatenate([_rows(head, i) - _rows(coarse, i) for i in range(0, head.rows, _ROWS_AT_ONCE)])
    inputs, _, extra = _corrected(rest, covariance(hidden))
    return Shortlist(inputs.astype(np.int32), extra, 0.0)


def coarse_logits(shortlist: Shortlist, head: Tensor, hidden: Floats) -> Floats:
    """What a shortlist is chosen by, [T, vocabulary], in float32."""
    coarse = coarse_head(head)
    parts = [hidden @ _rows(coarse, start).T for start in range(0, head.rows, _ROWS_AT_ONCE)]
    extra = hidden[:, shortlist.inputs] @ _floats("extra", shortlist.extra, EXTRA_INPUTS).T
    return np.asarray(np.concatenate(parts, axis=1) + extra, np.float32)


def _rows(tensor: Tensor, start: int) -> Floats:
    return np.asarray(dequantize(tensor.row_slice(start, min(start + _ROWS_AT_ONCE, tensor.rows))), np.float32)


def _floats(name: str, data: npt.NDArray[np.uint8], columns: int) -> Floats:
    return np.asarray(dequantize(Tensor(name, QuantType.Q8_0, (len(data), columns), data)), np.float32)

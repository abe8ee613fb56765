"""Calibration: the most that can be left out while predictions stay within a budget of loss, on text not fitted to."""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from localllm.errors import RequestError
from localllm.kernels.cpu.executor import CpuExecutor
from localllm.kernels.cpu.lower_sparse import sparse_support
from localllm.kernels.cpu.modes import can_have_shortlist
from localllm.kernels.executor import ExecutorOptions
from localllm.kernels.single_sequence import allocate_for, chunks, simple_step
from localllm.kernels.spec import Activation, FeedForward
from localllm.kernels.step import Output
from localllm.kernels.turbo import Turbo

from .cost import cost_between, logits_in
from .layers import PRICES, LayerChoice, layer_choices, stored_choice
from .record import LayerFacts, TurboCost, TurboRecord
from .sketch import coarse_logits, fit_shortlist
from .worth import shortlist_cost

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from localllm.kernels.spec import ModelSpec
    from localllm.kernels.turbo import Shortlist

    Floats = npt.NDArray[np.float32]

LEAST_TOKENS, MOST_TOKENS = 64, 512  # of each half of the text
_LOGITS_BYTES = 1 << 27
_ROWS = 128  # of a step whose inputs are kept
_SHORTLIST_VOCABULARY = 8192
_WORTH = 0.8  # of the time of the head, for a shortlist
_MARGINS = range(4, 21)


@dataclass(frozen=True, slots=True, eq=False)
class _Text:
    fitted: Sequence[int]
    judged: Sequence[int]


def calibrate(
    spec: ModelSpec,
    ids: Sequence[int],
    *,
    model: str,
    budget: float = 0.01,
    threshold: float = 0.0,
    threads: int | None = None,
    progress: Callable[[float], None] | None = None,
) -> TurboRecord:
    """Fit on the first half of token ids, choose and measure on the second.

    `budget`: how much perplexity may rise, relative, for tokens as the exact model expects them: the KL divergence
    is at most log(1 + budget). `model`: fingerprint of its file. `threshold`: of PowerInfer's predictors, where it has
    them. RequestError for a text of fewer than 128 tokens.
    """
    text = _divided(spec, ids)
    report = progress or (lambda _: None)
    inputs, hidden = _inputs(spec, text.fitted, threads)
    exact = logits_in(spec, text.judged, "exact", None, threads)
    report(0.1)
    allowed = math.log1p(budget)
    shortlist, spent = _shortlist(spec, hidden, text, exact, allowed / 2, threads)
    able = sparse_support(spec.layers, range(len(spec.layers))).layers
    stored: dict[int, LayerChoice] = {}
    found: dict[int, tuple[LayerChoice | None, ...]] = {}
    for index, layer in enumerate(spec.layers):
        block = layer.feed_forward
        if index in able and isinstance(block, FeedForward) and block.activation is not Activation.SWIGLU_CLAMPED:
            if block.predictor is not None:
                stored[index] = stored_choice(block, threshold)
            else:
                found[index] = layer_choices(block, inputs[index], layer.residual_scale)
        report(0.1 + 0.6 * (index + 1) / len(spec.layers))

    def at(step: int) -> dict[int, LayerChoice]:
        chosen = {index: choice for index, choices in found.items() if (choice := choices[step]) is not None}
        return {**stored, **chosen}

    def measured(choices: dict[int, LayerChoice], shortlist: Shortlist | None) -> TurboCost:
        layers = [choices[i].turbo if i in choices else None for i in range(len(spec.layers))]
        changed = logits_in(spec, text.judged, "turbo", Turbo(tuple(layers), shortlist), threads)
        return cost_between(exact, changed, text.judged)

    step, high = 0, len(PRICES)
    while found and high - step > 1:  # without the shortlist: a coarse head takes long to make
        middle = (step + high) // 2
        if measured(at(middle), None).divergence <= allowed - spent:
            step = middle
        else:
            high = middle
        report(0.95 - 0.25 * (high - step) / len(PRICES))
    choices = at(step)
    cost = measured(choices, shortlist)
    while found and step > 0 and cost.divergence > allowed:  # the two losses are not quite independent
        step -= 1
        choices = at(step)
        cost = measured(choices, shortlist)
    report(1.0)
    layers = tuple(choices[i].turbo if i in choices else None for i in range(len(spec.layers)))
    facts = {i: LayerFacts(c.turbo.scores, c.cut.kept, c.cut.fired, c.cut.loss) for i, c in choices.items()}
    return TurboRecord(model, budget, Turbo(layers, shortlist), facts, cost)


def _divided(spec: ModelSpec, ids: Sequence[int]) -> _Text:
    half = min(len(ids) // 2, MOST_TOKENS, spec.context_length)
    if half < LEAST_TOKENS:
        raise RequestError(f"the text has {len(ids)} tokens, a calibration needs {2 * LEAST_TOKENS}", parameter="text")
    judged = min(half, max(LEAST_TOKENS, _LOGITS_BYTES // (4 * spec.vocabulary_size)))
    return _Text(ids[:half], ids[half : half + judged])


def _inputs(spec: ModelSpec, ids: Sequence[int], threads: int | None) -> tuple[list[Floats], Floats]:
    """By layer what its feed-forward block reads [T, width], and the hidden vectors [T, width] that the head reads."""
    executor = CpuExecutor(spec, ExecutorOptions(threads=threads, max_rows=_ROWS, mode="exact", keep_inputs=True))
    parts: list[list[Floats]] = [[] for _ in spec.layers]
    hidden = []
    try:
        allocate_for(executor, len(ids), "f32")
        for start, stop in chunks(0, len(ids), _ROWS):
            step = simple_step(executor.layout, ids[start:stop], start, output=Output.HIDDEN)
            hidden.append(executor.forward(step).copy())
            for layer, kept in enumerate(parts):
                kept.append(executor.block_inputs(layer, stop - start))
    finally:
        executor.close()
    return [np.concatenate(kept) for kept in parts], np.concatenate(hidden)


def _shortlist(
    spec: ModelSpec, hidden: Floats, text: _Text, exact: Floats, allowed: float, threads: int | None
) -> tuple[Shortlist | None, float]:
    """The smallest shortlist within the allowed divergence, and its own; None if it would not be worth it."""
    weight, head = spec.head.linear.weight, spec.head
    if spec.vocabulary_size < _SHORTLIST_VOCABULARY or not can_have_shortlist(spec) or head.softcap is not None:
        return None, 0.0
    shortlist = fit_shortlist(weight, hidden)
    executor = CpuExecutor(spec, ExecutorOptions(threads=threads, mode="exact"))
    try:
        allocate_for(executor, len(text.judged), "f32")
        rows = []
        for start, stop in chunks(0, len(text.judged), executor.max_rows):
            step = simple_step(executor.layout, text.judged[start:stop], start, output=Output.HIDDEN)
            rows.append(executor.forward(step).copy())
    finally:
        executor.close()
    guessed = coarse_logits(shortlist, weight, np.concatenate(rows)) * np.float32(head.scale)
    best = guessed.max(axis=1, keepdims=True)

    def divergence(margin: int) -> float:
        changed = np.where(guessed >= best - np.float32(margin * head.scale), exact, guessed)
        return cost_between(exact, changed, text.judged).divergence

    at = bisect.bisect_left(_MARGINS, True, key=lambda margin: divergence(margin) <= allowed)
    if at == len(_MARGINS):
        return None, 0.0
    margin = _MARGINS[at]
    inside = guessed >= best - np.float32(margin * head.scale)
    worth = shortlist_cost(weight, float(inside.sum(axis=1).mean())) < _WORTH * weight.nbytes
    return (replace(shortlist, margin=float(margin)), divergence(margin)) if worth else (None, 0.0)

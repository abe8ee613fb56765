"""Mode turbo: exact where nothing is missed, the reference with the missed neurons left out elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from localllm.gguf_io import QuantType, Tensor, dequantize, quantize
from localllm.kernels.cpu.executor import CpuExecutor
from localllm.kernels.errors import ExecutionError
from localllm.kernels.executor import ExecutorOptions, Mode
from localllm.kernels.reference import ReferenceExecutor
from localllm.kernels.reference.operations import activate, normalise
from localllm.kernels.reference.weights import Weights
from localllm.kernels.registry import open_executor
from localllm.kernels.single_sequence import logits_of
from localllm.kernels.spec import Activation, FeedForward, Layer, Linear, ModelSpec
from localllm.kernels.turbo import LayerTurbo, Scores, Shortlist, Sketch, Turbo

TOKENS = np.random.default_rng(4).integers(0, 96, 40).astype(np.int32)

Floats = npt.NDArray[np.float32]
Maker = Callable[..., Any]


def _run(spec: ModelSpec, mode: Mode, turbo: Turbo | None = None, *, threads: int = 2, chunk: int = 40) -> Floats:
    options = ExecutorOptions(threads=threads, max_rows=64, mode=mode, turbo=turbo)
    executor = CpuExecutor(spec, options)
    try:
        return logits_of(executor, TOKENS, chunk=chunk).copy()
    finally:
        executor.close()


def _sketch(block: FeedForward, seed: int = 3) -> Sketch:
    """Any sketch: good enough that scores and gates go together."""
    matrix = dequantize((block.gate or block.up).weight)
    rng, neurons = np.random.default_rng(seed), len(matrix)
    scales = np.abs(matrix).mean(axis=1).astype(np.float32)
    inputs = np.sort(rng.choice(matrix.shape[1], 32, replace=False)).astype(np.int32)
    extra = quantize((rng.standard_normal((neurons, 32)) * 0.01).astype(np.float32), QuantType.Q8_0)
    return Sketch(scales, (rng.standard_normal(neurons) * 0.01).astype(np.float32), inputs, extra)


def _guessing(block: FeedForward, threshold: float) -> Turbo:
    thresholds = np.full(block.up.weight.rows, threshold, np.float32)
    return Turbo((LayerTurbo(Scores.SKETCH, thresholds, _sketch(block)),))


def _quantised(tensor: Tensor, kind: QuantType) -> Tensor:
    return Tensor("blocks", kind, tensor.shape, quantize(dequantize(tensor), kind))


def _one_layer(maker: Any, block: FeedForward) -> ModelSpec:
    made: ModelSpec = maker.model(Layer(maker.attention(), block))
    return made


@pytest.mark.parametrize("activation", [Activation.RELU, Activation.RELU_SQUARED, Activation.RELU_BOTH])
@pytest.mark.parametrize(("hidden", "neurons", "gate"), [(80, 100, True), (64, 96, False)])
def test_nothing_is_lost_when_nothing_is_missed(
    activation: Activation, hidden: int, neurons: int, gate: bool, spec_maker: Maker
) -> None:
    maker = spec_maker(hidden)
    block = maker.feed_forward(neurons, gate=gate, bias=True, activation=activation)
    spec = _one_layer(maker, block)
    expected = logits_of(ReferenceExecutor(spec, dtype=np.float64), TOKENS)
    found = _run(spec, "turbo", _guessing(block, -np.inf))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)
    for threads, chunk in ((1, 1), (3, 7)):
        np.testing.assert_array_equal(
            _run(spec, "turbo", _guessing(block, -np.inf), threads=threads, chunk=chunk), found
        )


@pytest.mark.parametrize("kind", [QuantType.Q4_0, QuantType.Q4_1, QuantType.Q8_0])
@pytest.mark.parametrize("transposed", [False, True])
def test_quantised_blocks_lose_nothing_either_and_cuts_give_the_same_bits(
    kind: QuantType, transposed: bool, spec_maker: Maker
) -> None:
    maker = spec_maker(96)
    block = maker.feed_forward(160, activation=Activation.RELU)
    gate, up = (Linear(_quantised(one.weight, kind)) for one in (block.gate, block.up))
    down = dequantize(block.down.weight)
    values = np.ascontiguousarray(down.T if transposed else down)
    matrix = Tensor("down", kind, values.shape, quantize(values, kind))
    block = replace(block, gate=gate, up=up, down=Linear(matrix), down_transposed=transposed)
    spec = _one_layer(maker, block)
    exact = logits_of(ReferenceExecutor(spec, dtype=np.float64), TOKENS)
    errors = [np.abs(_run(spec, *mode) - exact).max() for mode in (("exact",), ("turbo", _guessing(block, -np.inf)))]
    assert errors[1] <= max(1.2 * errors[0], 1e-4)
    some = _guessing(block, 0.1)
    found = _run(spec, "turbo", some)
    for threads, chunk in ((1, 1), (3, 9)):
        np.testing.assert_array_equal(_run(spec, "turbo", some, threads=threads, chunk=chunk), found)


@pytest.mark.parametrize("activation", [Activation.RELU, Activation.SILU])
def test_gates_of_one_row_with_thresholds_are_those_of_many(activation: Activation, spec_maker: Maker) -> None:
    """One row asks for the records of the neurons that it keeps while it computes gates."""
    maker = spec_maker(96)
    block = maker.feed_forward(160, activation=activation)
    quantised = [Linear(_quantised(one.weight, QuantType.Q4_0)) for one in (block.gate, block.up, block.down)]
    block = replace(block, gate=quantised[0], up=quantised[1], down=quantised[2])
    spec = _one_layer(maker, block)
    some = Turbo((LayerTurbo(Scores.GATE, np.full(160, 0.02, np.float32)),))
    found = _run(spec, "turbo", some)
    assert np.abs(found - _run(spec, "exact")).max() > 1e-3  # some are left out
    for threads, chunk in ((1, 1), (3, 9)):
        np.testing.assert_array_equal(_run(spec, "turbo", some, threads=threads, chunk=chunk), found)


def test_the_neurons_left_out_are_those_with_low_scores(spec_maker: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the reference gives it with these neurons set to zero."""
    maker = spec_maker(64)
    block = maker.feed_forward(96, activation=Activation.RELU, post_norm=maker.norm())
    spec, sketch = _one_layer(maker, block), _sketch(block)
    matrix = dequantize(block.gate.weight)
    signs = np.where(matrix >= 0, 1.0, -1.0)
    extra = dequantize(Tensor("extra", QuantType.Q8_0, (96, 32), sketch.extra))

    def reference(x: Any, own: FeedForward, weights: Weights) -> Any:
        y = normalise(x, own.norm, weights)  # type: ignore[arg-type]
        scores = (y @ signs.T) * sketch.scales + y[:, sketch.inputs] @ extra.T + sketch.bias
        gate, up = (weights.linear(y, one) for one in (own.gate, own.up) if one is not None)
        values = np.where(scores > 0.2, activate(own.activation, gate, up), 0)
        return normalise(weights.linear(values, own.down), own.post_norm, weights)  # type: ignore[arg-type]

    found = _run(spec, "turbo", Turbo((LayerTurbo(Scores.SKETCH, np.full(96, 0.2, np.float32), sketch),)))
    monkeypatch.setattr("localllm.kernels.reference.executor.feed_forward", reference)
    expected = logits_of(ReferenceExecutor(spec, dtype=np.float64), TOKENS)
    exact = _run(spec, "exact")
    close, equal = (np.abs(one - expected).max(axis=1) < 1e-3 for one in (found, exact))
    assert close.mean() > 0.5  # an input that is rounded to 8 bits may carry a score over the threshold
    assert equal.mean() < 0.1


def test_gates_below_a_threshold_are_left_out(spec_maker: Maker) -> None:
    """CATS: thresholds of 0 lose nothing, infinite ones everything, and more is never less."""
    maker = spec_maker()
    for activation in (Activation.SILU, Activation.GELU_TANH, Activation.RELU):
        block = maker.feed_forward(96, activation=activation)
        spec = _one_layer(maker, block)
        exact = logits_of(ReferenceExecutor(spec, dtype=np.float64), TOKENS)
        empty = replace(block, down=Linear(maker.tensor(64, 96, scale=0.0)))
        nothing = logits_of(
            ReferenceExecutor(replace(spec, layers=(replace(spec.layers[0], feed_forward=empty),)), dtype=np.float64),
            TOKENS,
        )
        kept = []
        for threshold in (0.0, 0.05, 0.3, np.inf):
            turbo = Turbo((LayerTurbo(Scores.GATE, np.full(96, threshold, np.float32)),))
            options = ExecutorOptions(threads=2, max_rows=64, mode="turbo", turbo=turbo, count_activations=True)
            executor = CpuExecutor(spec, options)
            found = logits_of(executor, TOKENS).copy()
            kept.append(int(executor.activation_counts()[0].sum()))
            executor.close()
            if threshold == 0:
                np.testing.assert_allclose(found, exact, rtol=0, atol=1e-4)
            if threshold == np.inf:
                np.testing.assert_allclose(found, nothing, rtol=0, atol=1e-4)
        assert kept[0] > kept[1] > kept[2] > kept[3] == 0


def test_the_predictor_of_a_file(spec_maker: Maker) -> None:
    """second(relu(first(x))) of the stream before its norm, which says exactly what fires if it is the gate itself."""
    maker = spec_maker(64)
    block = maker.feed_forward(96, activation=Activation.RELU, norm=None)
    gate = dequantize(block.gate.weight)
    both = np.concatenate([np.eye(64), -np.eye(64)]).astype(np.float32)  # relu(x), relu(-x)
    back = np.concatenate([gate, -gate], axis=1).astype(np.float32)
    first, second = (Linear(Tensor("fc", QuantType.F32, m.shape, m.view(np.uint8))) for m in (both, back))
    block = replace(block, predictor=(first, second))
    spec = _one_layer(maker, block)
    expected = logits_of(ReferenceExecutor(spec, dtype=np.float64), TOKENS)
    turbo = Turbo((LayerTurbo(Scores.STORED, np.zeros(96, np.float32)),))
    found = _run(spec, "turbo", turbo)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)
    np.testing.assert_array_equal(_run(spec, "turbo", turbo, threads=3, chunk=1), found)
    wrong = replace(block, predictor=(first, Linear(replace(second.weight, data=second.weight.data[::-1].copy()))))
    other = _run(replace(spec, layers=(replace(spec.layers[0], feed_forward=wrong),)), "turbo", turbo)
    assert np.abs(other - expected).max() > 0.01


@pytest.mark.parametrize("kind", [QuantType.Q8_0, QuantType.F16])
def test_a_shortlist_is_exact_where_it_looks(kind: QuantType, spec_maker: Maker) -> None:
    maker = spec_maker(64)
    spec = maker.model(Layer(maker.attention(), maker.feed_forward()))
    head = Linear(_quantised(spec.head.linear.weight, kind))
    spec = replace(spec, head=replace(spec.head, linear=head))
    exact = logits_of(ReferenceExecutor(spec, dtype=np.float64), TOKENS)
    rng = np.random.default_rng(2)
    extra = quantize((rng.standard_normal((96, 32)) * 0.01).astype(np.float32), QuantType.Q8_0)
    shortlist = Shortlist(np.arange(0, 64, 2, dtype=np.int32), extra, 1e9)
    whole = _run(spec, "turbo", Turbo((None,), shortlist))
    np.testing.assert_allclose(whole, exact, rtol=0, atol=1e-4)
    some = Turbo((None,), replace(shortlist, margin=0.5))
    found = _run(spec, "turbo", some)
    near = np.abs(found - whole) < 1e-6
    assert 0.01 < near.mean() < 0.7
    best = whole.argmax(axis=1)
    assert near[np.arange(len(TOKENS)), best].all()
    for threads, chunk in ((1, 1), (3, 7)):
        np.testing.assert_array_equal(_run(spec, "turbo", some, threads=threads, chunk=chunk), found)


def test_what_does_not_fit_is_an_error(spec_maker: Maker) -> None:
    maker = spec_maker(64)
    block = maker.feed_forward(96, activation=Activation.RELU)
    spec = _one_layer(maker, block)
    sketch, thresholds = _sketch(block), np.zeros(96, np.float32)
    with pytest.raises(ExecutionError, match="calibration"):
        _run(spec, "turbo")
    wrong: list[Turbo] = [
        Turbo(()),
        Turbo((LayerTurbo(Scores.GATE, thresholds[:5]),)),
        Turbo((LayerTurbo(Scores.STORED, thresholds),)),
        Turbo((LayerTurbo(Scores.SKETCH, thresholds),)),
        Turbo((LayerTurbo(Scores.SKETCH, thresholds, replace(sketch, inputs=sketch.inputs + 60)),)),
        Turbo((LayerTurbo(Scores.SKETCH, thresholds, replace(sketch, extra=sketch.extra[:7])),)),
        Turbo((None,), Shortlist(sketch.inputs, sketch.extra[:7], 1.0)),
        Turbo((None,), Shortlist(sketch.inputs, sketch.extra, -1.0)),
    ]
    for turbo in wrong:
        with pytest.raises(ExecutionError, match="calibration"):
            _run(spec, "turbo", turbo)
    smooth = _one_layer(maker, replace(block, activation=Activation.SILU))
    with pytest.raises(ExecutionError, match="layer 0"):
        _run(smooth, "turbo", Turbo((LayerTurbo(Scores.SKETCH, thresholds, sketch),)))
    options = ExecutorOptions(mode="turbo", turbo=Turbo((None,)))
    for device in ("reference", "cuda"):
        with pytest.raises(Exception, match="no mode turbo"):
            open_executor(spec, device, options)


def test_other_modes_ignore_a_calibration(spec_maker: Maker) -> None:
    maker = spec_maker(64)
    block = maker.feed_forward(96, activation=Activation.RELU)
    spec = _one_layer(maker, block)
    np.testing.assert_array_equal(_run(spec, "sparse", _guessing(block, 1.0)), _run(spec, "sparse"))


def test_inputs_of_blocks_are_kept(spec_maker: Maker) -> None:
    maker = spec_maker(80)
    spec = maker.model(*(Layer(maker.attention(), maker.feed_forward(96)) for _ in range(2)))
    executor = CpuExecutor(spec, ExecutorOptions(threads=2, max_rows=64, keep_inputs=True))
    seen: list[Any] = []
    reference = ReferenceExecutor(spec, dtype=np.float64)
    logits_of(executor, TOKENS)
    kept = [executor.block_inputs(layer, len(TOKENS)) for layer in range(2)]
    executor.close()
    with pytest.MonkeyPatch.context() as patch:
        from localllm.kernels.reference import executor as module

        original = module.feed_forward  # type: ignore[attr-defined]

        def noting(x: Any, *rest: Any) -> Any:
            seen.append(x.copy())
            return original(x, *rest)

        patch.setattr(module, "feed_forward", noting)
        logits_of(reference, TOKENS)
    for layer in range(2):
        np.testing.assert_allclose(kept[layer], seen[layer], rtol=0, atol=1e-4)
    plain = CpuExecutor(spec, ExecutorOptions(threads=1))
    with pytest.raises(ExecutionError, match="keep_inputs"):
        plain.block_inputs(0, 1)
    plain.close()

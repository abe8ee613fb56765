"""Every kind of block, in odd shapes, against the numpy reference: whole, row by row, and in uneven chunks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from localllm.gguf_io import QuantType, Tensor
from localllm.kernels.cpu.executor import CpuExecutor
from localllm.kernels.executor import ExecutorOptions
from localllm.kernels.reference import ReferenceExecutor
from localllm.kernels.single_sequence import logits_of
from localllm.kernels.spec import Activation, Gating, Layer, Linear, ModelSpec

TOKENS = np.random.default_rng(3).integers(0, 96, 40).astype(np.int32)


def _layers(maker: Any, **attention: Any) -> tuple[Layer, ...]:
    return tuple(Layer(maker.attention(**attention), maker.feed_forward()) for _ in range(2))


def _turned(linear: Linear) -> Linear:
    """A down matrix as PowerInfer's files store it: a row a neuron."""
    values = linear.weight.data.view(np.float32)
    turned = np.ascontiguousarray(values.swapaxes(-1, -2))
    return Linear(Tensor("turned", QuantType.F32, turned.shape, turned.view(np.uint8)), linear.bias)


def _down_turned(block: Any) -> Any:
    return replace(block, down=_turned(block.down), down_transposed=True)


SPECS: dict[str, Callable[[Any], ModelSpec]] = {
    "many query heads, dimension 24": lambda m: m.model(*_layers(m, heads=7, kv_heads=1, dim=24)),
    "every head its own, dimension 40": lambda m: m.model(*_layers(m, heads=3, kv_heads=3, dim=40)),
    "values shorter than keys": lambda m: m.model(*_layers(m, dim=32, value_dim=16)),
    "part of a head turns, interleaved": lambda m: m.model(*_layers(m, dim=32, rope=m.rope(8, interleaved=True))),
    "part of a head turns, halves": lambda m: m.model(*_layers(m, dim=32, rope=m.rope(20, magnitude=1.3))),
    "no rope, biases, soft cap": lambda m: m.model(*_layers(m, rope=None, bias=True, softcap=2.0)),
    "learned sinks and a window": lambda m: m.model(*_layers(m, window=9, sinks=m.tensor(4, scale=1.0))),
    "norms over heads": lambda m: m.model(*_layers(m, query_norm=m.norm(16), key_norm=m.norm(16))),
    "norms of each head after rope": lambda m: m.model(
        *_layers(m, query_norm=m.norm(4, 16), key_norm=m.norm(2, 16), norm_after_rope=True)
    ),
    "layer norms of each head": lambda m: m.model(
        *_layers(m, dim=24, query_norm=m.norm(4, 24, layer=True), key_norm=m.norm(2, 24, layer=True))
    ),
    "norms over all heads": lambda m: m.model(*_layers(m, dim=24, query_norm=m.norm(96), key_norm=m.norm(48))),
    "post norms": lambda m: m.model(
        Layer(m.attention(norm=None, post_norm=m.norm()), m.feed_forward(norm=None, post_norm=m.norm()), 0.7),
        Layer(m.attention(post_norm=m.norm()), m.feed_forward()),
        Layer(m.attention(), m.feed_forward(post_norm=m.norm())),
    ),
    "parallel, layer norms, positions": lambda m: m.model(
        *(
            Layer(m.attention(norm=m.norm(layer=True)), m.feed_forward(norm=m.norm(layer=True), bias=True), 1.0, True)
            for _ in range(2)
        ),
        embed={"norm": m.norm(layer=True), "positions": m.tensor(50, m.hidden, scale=1.0), "position_offset": 2},
    ),
    "scales and caps": lambda m: m.model(
        Layer(m.attention(), m.feed_forward(), 0.4), embed={"scale": 3.0}, head={"scale": 0.5, "softcap": 2.0}
    ),
    "no head norm, head bias, no gate": lambda m: m.model(
        Layer(m.attention(), m.feed_forward(neurons=72, gate=False, bias=True, activation=Activation.GELU)),
        head={"norm": None, "linear": m.linear(96, m.hidden, bias=True)},
    ),
    "down turned": lambda m: m.model(Layer(m.attention(), _down_turned(m.feed_forward()))),
    "latent": lambda m: m.model(*(Layer(m.latent_attention(), m.feed_forward()) for _ in range(2))),
    "latent, odd sizes": lambda m: m.model(
        Layer(m.latent_attention(heads=5, rank=40, nope=24, value_dim=12), m.feed_forward())
    ),
    "experts, softmax of the chosen": lambda m: m.model(
        *(Layer(m.attention(), m.experts(gating=Gating.SOFTMAX_CHOSEN, bias=True)) for _ in range(2))
    ),
    "experts, sigmoid, bias of choice, shared": lambda m: m.model(
        Layer(
            m.attention(),
            m.experts(
                count=19,
                top_k=4,
                gating=Gating.SIGMOID,
                selection_bias=m.tensor(19, scale=0.2),
                weight_scale=1.7,
                shared=m.feed_forward(norm=None),
                shared_gate=m.linear(1, m.hidden),
            ),
            0.8,
        )
    ),
    "experts that are routed early": lambda m: m.model(
        *(
            Layer(m.attention(), m.experts(router_reads_layer_input=True, normalise=False, activation=Activation.RELU))
            for _ in range(2)
        )
    ),
    "experts with a post norm, no gate": lambda m: m.model(
        Layer(m.attention(), m.experts(gate_present=False, post_norm=m.norm(), activation=Activation.RELU_SQUARED))
    ),
}


@pytest.mark.parametrize("name", SPECS)
def test_blocks_equal_the_reference(name: str, spec_maker: Callable[..., Any]) -> None:
    _compare(SPECS[name](spec_maker()))


@pytest.mark.parametrize("hidden", [48, 72])
def test_hidden_sizes_that_are_not_whole_blocks(hidden: int, spec_maker: Callable[..., Any]) -> None:
    maker = spec_maker(hidden)
    _compare(maker.model(*_layers(maker, query_norm=maker.norm(16, layer=True), norm=maker.norm(layer=True))))


@pytest.mark.parametrize("activation", list(Activation))
def test_activations(activation: Activation, spec_maker: Callable[..., Any]) -> None:
    maker = spec_maker()
    _compare(maker.model(Layer(maker.attention(), maker.feed_forward(bias=True, activation=activation))))


def _compare(spec: ModelSpec) -> None:
    expected = logits_of(ReferenceExecutor(spec, dtype=np.float64), TOKENS)
    executor = CpuExecutor(spec, ExecutorOptions(threads=2))
    try:
        whole = logits_of(executor, TOKENS)
        np.testing.assert_allclose(whole, expected, rtol=0, atol=2e-3 if _has_float16(spec) else 1e-4)
        for chunk in (1, 7):
            np.testing.assert_array_equal(logits_of(executor, TOKENS, chunk=chunk), whole)
    finally:
        executor.close()


def _has_float16(spec: ModelSpec) -> bool:
    return any(layer.feed_forward.down_transposed for layer in spec.layers)

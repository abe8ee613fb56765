"""Halves of a block hold the same weights as the whole, bit for bit, wherever it is cut."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from localllm.gguf_io import QuantType, Tensor, dequantize, open_gguf
from localllm.kernels.errors import UnsupportedModelError
from localllm.kernels.hybrid.halves import SplitExperts, SplitFeedForward, split_model
from localllm.kernels.hybrid.placement import LayerPlacement, Placement, unit_count
from localllm.kernels.spec import Activation, FeedForward, Layer, Linear, ModelSpec
from localllm.models import load_spec

DATA = Path(__file__).resolve().parents[2] / "data" / "models"
RNG = np.random.default_rng(3)


def _blocks(kind: QuantType, *shape: int) -> Linear:
    """Random blocks whose scales are sane numbers."""
    data = RNG.integers(0, 256, (*shape[:-1], shape[-1] // kind.block_size, kind.type_size), dtype=np.uint8)
    data[..., 1] = 0x20  # a float16 scale's high byte (Q4_0, Q8_0, Q4_K)
    if kind is QuantType.Q4_K:
        data[..., 3] = 0x20
    return Linear(Tensor("random", kind, shape, data.reshape(*shape[:-1], -1)))


def _model(spec_maker: Callable[..., Any], block: FeedForward) -> ModelSpec:
    maker = spec_maker(hidden=64)
    made: ModelSpec = maker.model(Layer(maker.attention(), block))
    return made


def _values(linear: Linear | None) -> npt.NDArray[np.float32]:
    assert linear is not None
    return np.asarray(dequantize(linear.weight), np.float32)


@pytest.mark.parametrize(
    ("kind", "neurons"), [(QuantType.Q4_0, 160), (QuantType.Q8_0, 96), (QuantType.Q4_K, 768), (QuantType.F32, 100)]
)
@pytest.mark.parametrize("units", [(0,), (1,), (0, 2), (1, 2)])
def test_rows_and_columns_of_chosen_groups(
    kind: QuantType, neurons: int, units: tuple[int, ...], spec_maker: Callable[..., Any]
) -> None:
    whole = 64 if kind is not QuantType.Q4_K else 256
    block = FeedForward(
        None, _blocks(kind, neurons, whole), _blocks(kind, neurons, whole), _blocks(kind, 64, neurons), Activation.SILU
    )
    if kind is QuantType.F32:
        maker = spec_maker(hidden=64)
        block = maker.feed_forward(neurons, bias=True)
    split = split_model(_model(spec_maker, block), Placement((LayerPlacement(units),)))[0]
    assert isinstance(split, SplitFeedForward)
    assert split.hot is not None
    assert split.cold is not None
    size = max(32, kind.block_size)
    hot = np.concatenate([np.arange(u * size, min((u + 1) * size, neurons)) for u in units])
    cold = np.setdiff1d(np.arange(neurons), hot)
    for half, members in ((split.hot, hot), (split.cold, cold)):
        for part in ("gate", "up"):
            whole_part, half_part = getattr(block, part), getattr(half, part)
            np.testing.assert_array_equal(_values(half_part), _values(whole_part)[members])
            if whole_part.bias is not None:
                np.testing.assert_array_equal(dequantize(half_part.bias), dequantize(whole_part.bias)[members])
        np.testing.assert_array_equal(_values(half.down), _values(block.down)[:, members])
    assert split.hot.down.bias is block.down.bias
    assert split.cold.down.bias is None


def test_neighbours_are_views_of_the_file(spec_maker: Callable[..., Any]) -> None:
    block = FeedForward(None, None, _blocks(QuantType.Q4_0, 128, 64), _blocks(QuantType.Q4_0, 64, 128), Activation.SILU)
    split = split_model(_model(spec_maker, block), Placement((LayerPlacement((1, 2)),)))[0]
    assert isinstance(split, SplitFeedForward)
    assert split.hot is not None
    for half, whole in ((split.hot.up, block.up), (split.hot.down, block.down)):
        assert np.shares_memory(half.weight.data, whole.weight.data)


def test_gates_of_all_neurons_begin_with_the_hot_ones(spec_maker: Callable[..., Any]) -> None:
    block = spec_maker(hidden=64).feed_forward(96, activation=Activation.RELU)
    split = split_model(_model(spec_maker, block), Placement((LayerPlacement((2,), gate=True),)))[0]
    assert isinstance(split, SplitFeedForward)
    expected = np.concatenate([_values(block.gate)[64:], _values(block.gate)[:64]])
    np.testing.assert_array_equal(_values(split.gate), expected)


def test_gates_are_in_the_order_of_the_halves_though_the_first_and_the_last_neuron_are_at_the_ends(
    spec_maker: Callable[..., Any],
) -> None:
    block = spec_maker(hidden=64).feed_forward(128, activation=Activation.RELU)
    split = split_model(_model(spec_maker, block), Placement((LayerPlacement((0, 2), gate=True),)))[0]
    assert isinstance(split, SplitFeedForward)
    order = np.arange(128).reshape(4, 32)[[0, 2, 1, 3]].reshape(-1)
    np.testing.assert_array_equal(_values(split.gate), _values(block.gate)[order])
    np.testing.assert_array_equal(split.cold_neurons, order[64:])


def test_experts_go_where_the_tables_say(spec_maker: Callable[..., Any]) -> None:
    maker = spec_maker(hidden=64)
    block = maker.experts(count=6, bias=True, shared=maker.feed_forward(32))
    spec = maker.model(Layer(maker.attention(), block))
    split = split_model(spec, Placement((LayerPlacement((1, 4)),)))[0]
    assert isinstance(split, SplitExperts)
    assert split.hot is not None
    assert split.cold is not None
    for half, whole, experts in ((split.hot.up, block.up, [1, 4]), (split.cold.down, block.down, [0, 2, 3, 5])):
        assert half.weight.shape == (len(experts), *whole.weight.shape[1:])
        assert half.weight.nbytes == whole.weight.nbytes * len(experts) // 6
        for number, expert in enumerate(experts):
            assert np.shares_memory(half.weight.expert(number).data, whole.weight.data)  # not a byte is copied
            np.testing.assert_array_equal(dequantize(half.weight.expert(number)), _values(whole)[expert])
    np.testing.assert_array_equal(split.table(hot=True), [2, 0, 2, 2, 1, 2])
    np.testing.assert_array_equal(split.table(hot=False), [0, 4, 1, 2, 4, 3])
    assert split.hot.shared is block.shared
    assert split.cold.shared is None


def test_a_layer_that_is_whole_on_the_device_is_not_split() -> None:
    spec = load_spec(open_gguf(DATA / "llama_gqa_tied_f16.gguf"))
    units = [unit_count(layer.feed_forward) for layer in spec.layers]
    placement = Placement(tuple(LayerPlacement(tuple(range(count))) for count in units))
    assert split_model(spec, placement) == {}
    with pytest.raises(UnsupportedModelError, match="layer 0 has units 0 to"):
        split_model(spec, replace(placement, layers=(LayerPlacement((0, 99)), *placement.layers[1:])))
    with pytest.raises(UnsupportedModelError, match="a placement of 1 layers"):
        split_model(spec, Placement(placement.layers[:1]))

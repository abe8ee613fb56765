"""Experts change places while a model runs: results stay, the policy settles, and nothing is lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localllm.kernels.cpu.executor import CpuExecutor
from localllm.kernels.executor import ExecutorOptions
from localllm.kernels.hybrid.adaptive import Popularity, Residence
from localllm.kernels.hybrid.device import CpuDevice
from localllm.kernels.hybrid.executor import HybridExecutor
from localllm.kernels.hybrid.halves import split_model
from localllm.kernels.hybrid.placement import LayerPlacement, Placement
from localllm.kernels.single_sequence import pages_for, simple_step
from localllm.kernels.spec import Activation, Layer, ModelSpec

OPTIONS = ExecutorOptions(threads=1, max_rows=8)


def _model(spec_maker: Callable[..., Any], kind: str = "plain", count: int = 8) -> ModelSpec:
    maker = spec_maker()
    if kind == "bias":
        block = maker.experts(count=count, top_k=2, bias=True, shared=maker.feed_forward(32))
    elif kind == "no gate":
        block = maker.experts(count=count, top_k=2, gate_present=False, activation=Activation.GELU)
    else:
        block = maker.experts(count=count, top_k=2)
    made: ModelSpec = maker.model(Layer(maker.attention(), block), Layer(maker.attention(), maker.experts(count=count)))
    return made


def _placement(*units: tuple[int, ...]) -> Placement:
    return Placement(tuple(LayerPlacement(chosen) for chosen in units))


def _decode(executor: HybridExecutor | CpuExecutor, tokens: list[int]) -> npt.NDArray[np.float32]:
    executor.allocate_kv(pages_for(executor.layout, 64), "f32", (0,))
    return np.concatenate(
        [executor.forward(simple_step(executor.layout, np.array([t]), i)).copy() for i, t in enumerate(tokens)]
    )


@pytest.mark.parametrize("kind", ["plain", "bias", "no gate"])
def test_a_swap_gives_the_bits_of_a_model_that_was_loaded_like_that(kind: str, spec_maker: Callable[..., Any]) -> None:
    spec = _model(spec_maker, kind)
    moved = HybridExecutor(spec, _placement((0, 1, 2), (5, 6)), CpuDevice, OPTIONS, adaptive=True)
    assert moved.swapper is not None
    for layer, incoming, outgoing in ((0, 7, 1), (0, 1, 0)):
        moved.swapper.begin([moved.swapper.residence.swap(layer, incoming, outgoing)])
        moved.finish_swaps()
    residence = moved.swapper.residence
    moved.swapper.begin([residence.swap(0, 4, 7), residence.swap(1, 0, 6)])
    moved.finish_swaps()
    expected = _placement((1, 2, 4), (0, 5))
    assert moved.placement == expected
    fresh = HybridExecutor(spec, expected, CpuDevice, OPTIONS)
    tokens = [5, 60, 31]  # too few for another swap
    np.testing.assert_array_equal(_decode(moved, tokens), _decode(fresh, tokens))
    moved.close()
    fresh.close()


def test_experts_that_are_used_move_to_the_device_while_answers_stay(spec_maker: Callable[..., Any]) -> None:
    spec = _model(spec_maker)
    whole = CpuExecutor(spec, OPTIONS)
    executor = HybridExecutor(spec, _placement((0, 1, 2), (0, 1, 2)), CpuDevice, OPTIONS, adaptive=True)
    assert executor.swapper is not None
    tokens = [7, 9, 9, 7] * 12
    expected, found = _decode(whole, tokens), _decode(executor, tokens)
    assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()
    executor.finish_swaps()
    assert executor.swapper.swaps > 0
    assert min(executor.cold_seconds(2, rows=8)) > 0
    assert not executor._exchange.uses().any()  # a measurement chooses experts for nobody
    scores = executor.swapper.popularity.scores
    assert scores[0].sum() > 0
    hottest = int(np.argmax(scores[0]))
    assert hottest in executor.placement.layers[0].units
    executor.close()
    whole.close()


def test_without_a_hot_half_nothing_moves(spec_maker: Callable[..., Any]) -> None:
    executor = HybridExecutor(_model(spec_maker), _placement((), ()), CpuDevice, OPTIONS, adaptive=True)
    _decode(executor, [5, 6, 7])
    assert executor.swapper is not None
    assert executor.swapper.residence.layers == ()
    executor.close()


def _residence(spec_maker: Callable[..., Any], hot: int) -> Residence:
    spec = _model(spec_maker, count=12)
    placement = _placement(tuple(range(hot)), tuple(range(hot)))
    return Residence(split_model(spec, placement, spare=True), 2)


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10**6), hot=st.integers(1, 11))
def test_every_expert_is_somewhere_and_hot_sets_keep_their_size(
    spec_maker: Callable[..., Any], seed: int, hot: int
) -> None:
    rng = np.random.default_rng(seed)
    residence = _residence(spec_maker, hot)
    for _ in range(20):
        layer = int(rng.integers(2))
        incoming = int(rng.choice(np.flatnonzero(residence.cold[layer])))
        outgoing = int(rng.choice(residence.on_device(layer)))
        swap = residence.swap(layer, incoming, outgoing)
        taken = residence.table(layer, hot=False)
        assert swap.spare not in taken[taken >= 0]
        residence.apply(swap)
        slots, places = residence.table(layer, hot=True), residence.table(layer, hot=False)
        assert ((slots >= 0) != (places >= 0)).all()
        assert sorted(slots[slots >= 0].tolist()) == list(range(hot))
        assert len(set(places[places >= 0].tolist())) == 12 - hot
        assert places.max() <= 12 - hot
    with pytest.raises(ValueError, match="is not on the CPU"):
        residence.swap(0, residence.on_device(0)[0], residence.on_device(0)[0])


def test_the_policy_settles_and_follows_a_change(spec_maker: Callable[..., Any]) -> None:
    residence, rng = _residence(spec_maker, 4), np.random.default_rng(2)
    popularity = Popularity(*residence.shape, half_life=200)

    def run(rates: npt.NDArray[np.float64], tokens: int) -> int:
        swaps = 0
        for _ in range(tokens):
            popularity.note((rng.random((2, 12)) < rates).astype(np.int64), 1)
            for swap in popularity.best_swaps(residence, 1):
                residence.apply(swap)
                swaps += 1
        return swaps

    rates = np.full((2, 12), 0.05)
    rates[:, 6:10] = 0.6
    assert 8 <= run(rates, 400) <= 24
    assert residence.on_device(0) == residence.on_device(1) == (6, 7, 8, 9)
    assert run(rates, 400) == 0  # experts of equal use do not change places for ever
    assert run(np.roll(rates, 4, axis=1), 600) >= 8
    assert residence.on_device(0) == residence.on_device(1) == (0, 1, 10, 11)


def test_options_of_the_halves_are_kept(spec_maker: Callable[..., Any]) -> None:
    """Memory says what the spare places cost."""
    spec, placement = _model(spec_maker), _placement((0, 1), (0, 1))
    sizes = []
    for adaptive in (False, True):
        executor = HybridExecutor(spec, placement, CpuDevice, replace(OPTIONS, max_rows=4), adaptive=adaptive)
        sizes.append(executor.memory().weights["cpu"])
        executor.close()
    assert sizes[1] > sizes[0]

"""The two halves of a model give what the whole gives, wherever it is cut; a half that is lost is an error, no hang."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pytest

from localllm.gguf_io import open_gguf
from localllm.kernels.cpu.executor import CpuExecutor
from localllm.kernels.errors import ExecutionError
from localllm.kernels.executor import ExecutorOptions
from localllm.kernels.hybrid.device import CpuDevice
from localllm.kernels.hybrid.executor import HybridExecutor
from localllm.kernels.hybrid.placement import LayerPlacement, Placement, gates_first, uniform_placement, unit_count
from localllm.kernels.single_sequence import logits_of, pages_for, simple_step
from localllm.kernels.spec import Activation, Layer, ModelSpec
from localllm.models import load_spec

if TYPE_CHECKING:
    from localllm.kernels.executor import Executor
    from localllm.kernels.step import Step

DATA = Path(__file__).resolve().parents[2] / "data" / "models"
TOKENS = np.random.default_rng(4).integers(3, 60, 23).astype(np.int32)
OPTIONS = ExecutorOptions(threads=1, max_rows=16)

Logits = npt.NDArray[np.float32]


def _model(spec_maker: Callable[..., Any], kind: str) -> ModelSpec:
    """Two layers; 160 neurons are 5 groups, 100 are 4 of which the last is small."""
    maker = spec_maker()
    blocks = {
        "dense": maker.feed_forward(160),
        "ragged": maker.feed_forward(100, bias=True, post_norm=maker.norm()),
        "no gate": maker.feed_forward(160, gate=False, activation=Activation.GELU, bias=True),
        "relu": maker.feed_forward(160, activation=Activation.RELU),
        "relu both": maker.feed_forward(160, activation=Activation.RELU_BOTH, bias=True),
        "relu squared": maker.feed_forward(160, gate=False, activation=Activation.RELU_SQUARED),
        "experts": maker.experts(count=7, top_k=3, bias=True, shared=maker.feed_forward(32)),
        "relu experts": maker.experts(count=5, activation=Activation.RELU, router_reads_layer_input=True),
    }
    layers = [Layer(maker.attention(), blocks[kind], residual_scale=0.7) for _ in range(2)]
    made: ModelSpec = maker.model(*layers)
    return made


KINDS = ("dense", "ragged", "no gate", "relu", "relu both", "relu squared", "experts", "relu experts")


def _run(executor: Executor) -> Logits:
    """Chunks of many rows, then rows one by one."""
    found = logits_of(executor, TOKENS[:20], chunk=11)
    executor.allocate_kv(pages_for(executor.layout, 32), "f32", (0,) * len(executor.layout.groups))
    executor.forward(simple_step(executor.layout, TOKENS[:4]))
    single = [executor.forward(simple_step(executor.layout, TOKENS[i : i + 1], i)).copy() for i in range(4, 6)]
    executor.close()
    return np.concatenate([found, *single])


def _random_placement(spec: ModelSpec, seed: int) -> Placement:
    rng = np.random.default_rng(seed)
    layers = []
    for layer in spec.layers:
        count = unit_count(layer.feed_forward)
        chosen = np.flatnonzero(rng.random(count) < rng.random())
        layers.append(LayerPlacement(tuple(chosen.tolist()), gates_first(layer.feed_forward, None)))
    return Placement(tuple(layers))


@pytest.mark.parametrize("kind", KINDS)
def test_any_split_gives_the_logits_of_the_whole(kind: str, spec_maker: Callable[..., Any]) -> None:
    spec = _model(spec_maker, kind)
    expected = _run(CpuExecutor(spec, OPTIONS))
    placements = [uniform_placement(spec, share) for share in (0, 0.1, 0.5, 0.9, 1)]
    placements.append(_random_placement(spec, 2))
    without_gates = [replace(layer, gate=False) for layer in placements[2].layers]
    placements.append(Placement(tuple(without_gates)))
    for placement in placements:
        found = _run(HybridExecutor(spec, placement, CpuDevice, OPTIONS))
        assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max(), placement


@pytest.mark.parametrize("name", ["llama_relu", "mix_q4_k_m_like", "falcon"])
def test_quantised_models_differ_by_no_more_than_a_rounded_activation(name: str) -> None:
    """Sums are added in another order, and a value that lay between two 8-bit steps may become the other one."""
    spec = load_spec(open_gguf(DATA / f"{name}.gguf"))
    expected = _run(CpuExecutor(spec, OPTIONS))
    for seed in range(1):
        found = _run(HybridExecutor(spec, _random_placement(spec, seed), CpuDevice, OPTIONS))
        assert np.abs(found - expected).max() <= 5e-3 * np.abs(expected).max()


@pytest.mark.parametrize("threads", [2, 3])
def test_the_number_of_threads_changes_no_bit(threads: int, spec_maker: Callable[..., Any]) -> None:
    spec = _model(spec_maker, "dense")
    placement = uniform_placement(spec, 0.5)
    one, more = (
        _run(HybridExecutor(spec, placement, CpuDevice, replace(OPTIONS, threads=count))) for count in (1, threads)
    )
    np.testing.assert_array_equal(one, more)


def test_pages_and_memory_are_the_devices(spec_maker: Callable[..., Any]) -> None:
    spec = _model(spec_maker, "dense")
    executor = HybridExecutor(spec, uniform_placement(spec, 0.5), CpuDevice, OPTIONS)
    executor.allocate_kv((3,), "f32", (0,))
    executor.forward(simple_step(executor.layout, TOKENS[:5]))
    page = executor.read_page(0, 0)
    executor.write_page(0, 1, page)
    assert executor.read_page(0, 1) == page
    memory = executor.memory()
    assert memory.kv["device"] > 0
    assert memory.weights["cpu"] > 0
    assert memory.weights["device"] > 0
    assert "hybrid" in executor.describe()
    spans = [event for event in executor.timeline() if event["ph"] == "X"]
    assert [span["name"] for span in spans if span["tid"] == 2] == ["layer 0: cold half", "layer 1: cold half"]
    assert sum(span["dur"] for span in spans) > 0
    executor.close()
    executor.close()


class _Deaf(CpuDevice):
    """A device whose step never begins: a lost card."""

    deaf = False

    def start(self, step: Step, number: int, *, alone: bool = False) -> None:
        if not self.deaf:
            super().start(step, number, alone=alone)

    def finish(self) -> Logits:
        return np.zeros((1, 1), np.float32) if self.deaf else super().finish()


def test_a_lost_half_is_an_error_and_no_hang(spec_maker: Callable[..., Any]) -> None:
    spec = _model(spec_maker, "dense")
    made: list[_Deaf] = []

    def device(*given: Any) -> _Deaf:
        made.append(_Deaf(*given))
        return made[0]

    executor = HybridExecutor(spec, uniform_placement(spec, 0.5), device, OPTIONS, patience=0.05)
    executor.allocate_kv((2,), "f32", (0,))
    step = simple_step(executor.layout, TOKENS[:3])
    executor.forward(step)
    made[0].deaf = True
    began = time.monotonic()
    with pytest.raises(ExecutionError, match="lost each other in layer 0"):
        executor.forward(step)
    assert time.monotonic() - began < 60
    made[0].deaf = False
    with pytest.raises(ExecutionError, match="lost each other"):
        executor.forward(step)
    executor.close()


def test_a_bad_token_is_an_error_of_that_step_only(spec_maker: Callable[..., Any]) -> None:
    spec = _model(spec_maker, "dense")
    executor = HybridExecutor(spec, uniform_placement(spec, 0.5), CpuDevice, OPTIONS)
    executor.allocate_kv((2,), "f32", (0,))
    good = simple_step(executor.layout, TOKENS[:3])
    expected = executor.forward(good).copy()
    with pytest.raises(ExecutionError, match="outside the vocabulary"):
        executor.forward(replace(good, tokens=np.array([1, 99999, 2], np.int32)))
    np.testing.assert_array_equal(executor.forward(good), expected)
    executor.close()


def test_every_step_of_many_rows_is_divided_anew(spec_maker: Callable[..., Any]) -> None:
    """Threads take parts of such steps from counters, which begin at zero in every step."""
    spec, rows = _model(spec_maker, "dense"), 70
    tokens = np.random.default_rng(8).integers(3, 60, 2 * rows).astype(np.int32)
    options = replace(OPTIONS, threads=2, max_rows=rows)
    whole = logits_of(CpuExecutor(spec, options), tokens, chunk=rows)
    halves = HybridExecutor(spec, uniform_placement(spec, 0.5), CpuDevice, options)
    np.testing.assert_allclose(logits_of(halves, tokens, chunk=rows), whole, rtol=0, atol=1e-4 * np.abs(whole).max())
    halves.close()

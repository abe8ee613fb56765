"""Sparse feed-forward blocks: as near to the reference as dense ones, the same bits however a step is cut."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from localllm.gguf_io import QuantType, Tensor, open_gguf
from localllm.kernels.cpu.executor import CpuExecutor
from localllm.kernels.cpu.isa import Isa, available_isas
from localllm.kernels.executor import ExecutorOptions, Mode
from localllm.kernels.reference import ReferenceExecutor
from localllm.kernels.single_sequence import logits_of
from localllm.kernels.spec import Activation, Layer, Linear, ModelSpec
from localllm.models import load_spec

TOKENS = np.random.default_rng(4).integers(0, 96, 60).astype(np.int32)
_DATA = Path(__file__).resolve().parents[3] / "data"

Logits = npt.NDArray[np.float32]


def _run(spec: ModelSpec, mode: Mode | None, threads: int, *chunks: int) -> list[Logits]:
    executor = CpuExecutor(spec, ExecutorOptions(threads=threads, max_rows=64, mode=mode))
    try:
        return [logits_of(executor, TOKENS, chunk=chunk).copy() for chunk in chunks]
    finally:
        executor.close()


def _model(maker: Any, **changes: Any) -> ModelSpec:
    layers = [Layer(maker.attention(), maker.feed_forward(**changes)) for _ in range(2)]
    made: ModelSpec = maker.model(*layers)
    return made


def _check_floats(spec: ModelSpec) -> None:
    """Plain floats: the reference's logits, and the same bits for any cut and thread count."""
    whole, single, some = _run(spec, "sparse", 2, 60, 1, 7)
    (other,) = _run(spec, None, 1, 13)
    np.testing.assert_allclose(whole, logits_of(ReferenceExecutor(spec, dtype=np.float64), TOKENS), rtol=0, atol=1e-4)
    for again in (single, some, other):
        np.testing.assert_array_equal(again, whole)


@pytest.mark.parametrize("activation", [Activation.RELU, Activation.RELU_SQUARED, Activation.RELU_BOTH])
def test_activations(activation: Activation, spec_maker: Callable[..., Any]) -> None:
    _check_floats(_model(spec_maker(), activation=activation))


@pytest.mark.parametrize(("hidden", "neurons"), [(80, 100), (16, 33), (160, 500)])
def test_odd_shapes(hidden: int, neurons: int, spec_maker: Callable[..., Any]) -> None:
    _check_floats(_model(spec_maker(hidden), activation=Activation.RELU, neurons=neurons))


def test_no_gate_biases_and_a_post_norm(spec_maker: Callable[..., Any]) -> None:
    maker = spec_maker()
    _check_floats(_model(maker, activation=Activation.RELU_SQUARED, gate=False, bias=True, post_norm=maker.norm()))
    _check_floats(_model(maker, activation=Activation.RELU, bias=True))


def test_nothing_fires(spec_maker: Callable[..., Any]) -> None:
    maker = spec_maker()
    bias = np.full(96, -1e3, np.float32)
    gate = Linear(maker.tensor(96, 64), Tensor("bias", QuantType.F32, (96,), bias.view(np.uint8)))
    _check_floats(_gated(maker, gate))
    up, down = _block_tensor(QuantType.Q4_0, 96, 64, 1), _block_tensor(QuantType.Q4_0, 64, 96, 2)
    block = replace(_gated(maker, gate).layers[0].feed_forward, up=Linear(up), down=Linear(down))
    spec = maker.model(Layer(maker.attention(), block))
    _check_floats(spec)  # in records


def _gated(maker: Any, gate: Linear) -> ModelSpec:
    block = replace(maker.feed_forward(), gate=gate, activation=Activation.RELU)
    made: ModelSpec = maker.model(Layer(maker.attention(), block))
    return made


def _block_tensor(quant_type: QuantType, rows: int, columns: int, seed: int) -> Tensor:
    """Sound blocks of a golden file in a random order; plain numbers are random."""
    if quant_type.block_size == 1:
        floats = np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)
        halves = floats.astype(np.float16) if quant_type is QuantType.F16 else floats.view(np.uint16)[:, 1::2].copy()
        return Tensor("plain", quant_type, (rows, columns), halves.view(np.uint8))
    blocks = np.load(_DATA / "blocks" / f"{quant_type.name.lower()}.npz")
    name = next(key for key in blocks.files if blocks[key].dtype == np.uint8)
    data = blocks[name].reshape(-1, quant_type.type_size)
    count = rows * columns // quant_type.block_size
    order = np.random.default_rng(seed).integers(0, len(data), count)
    return Tensor("blocks", quant_type, (rows, columns), data[order].reshape(rows, -1).copy())


_TYPES = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "F16", "BF16"]


def _error(
    spec: ModelSpec, expected: Logits, mode: Mode, *, threads: int = 2, chunks: tuple[int, ...] = (20,)
) -> float:
    """How far from `expected` (root mean square); the bits must be the same for every way to cut the tokens."""
    executor = CpuExecutor(spec, ExecutorOptions(threads=threads, max_rows=32, mode=mode))
    try:
        assert ("sparse in 1 layers" in executor.describe()) == (mode == "sparse")
        first, *others = (logits_of(executor, TOKENS[:20], chunk=chunk).copy() for chunk in chunks)
        for other in others:
            np.testing.assert_array_equal(other, first)
    finally:
        executor.close()
    return float(np.sqrt(((first - expected) ** 2).mean()))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("name", _TYPES)
def test_types(name: str, transposed: bool, spec_maker: Callable[..., Any]) -> None:
    """The block alone against float64, from weights of every type; every neuron is computed from the file's numbers."""
    quant_type = QuantType[name]
    hidden, neurons = 256, 512
    maker = spec_maker(hidden)
    up = _block_tensor(quant_type, neurons, hidden, 1)
    down = _block_tensor(quant_type, *((neurons, hidden) if transposed else (hidden, neurons)), 2)
    block = replace(
        maker.feed_forward(neurons), up=Linear(up), down=Linear(down), down_transposed=transposed,
        activation=Activation.RELU, post_norm=maker.norm(),
    )  # fmt: skip
    spec = maker.model(Layer(maker.attention(), block))
    expected = logits_of(ReferenceExecutor(spec, dtype=np.float64), TOKENS[:20])
    sparse = _error(spec, expected, "sparse", chunks=(20, 1))
    limit = 1e-3 if transposed else max(1.05 * _error(spec, expected, "exact"), 1e-3)
    assert sparse <= limit


_SHAPES = [(96, 64, "Q4_0", "Q4_0"), (160, 416, "Q4_1", "Q4_0"), (608, 96, "", "Q4_1"), (256, 512, "Q4_K", "Q2_K"),
           (1152, 1536, "Q4_0", "Q4_0"), (256, 256, "", "Q3_K")]  # fmt: skip


@pytest.mark.parametrize(("hidden", "neurons", "up_type", "down_type"), _SHAPES)
def test_records(hidden: int, neurons: int, up_type: str, down_type: str, spec_maker: Callable[..., Any]) -> None:
    """Nibbles, in widths that are no whole pieces: no worse than dense, equal bits for any cut. "": no gate."""
    maker = spec_maker(hidden)
    up = Linear(_block_tensor(QuantType[up_type or "Q4_0"], neurons, hidden, 1), maker.tensor(neurons, scale=0.1))
    down = Linear(_block_tensor(QuantType[down_type], hidden, neurons, 2), maker.tensor(hidden, scale=0.1))
    block = replace(maker.feed_forward(neurons, bias=True), up=up, down=down, activation=Activation.RELU,
                    post_norm=maker.norm())  # fmt: skip
    if not up_type:
        block = replace(block, gate=None, activation=Activation.RELU_SQUARED)
    spec = maker.model(Layer(maker.attention(), block))
    expected = logits_of(ReferenceExecutor(spec, dtype=np.float64), TOKENS[:20])
    errors = [_error(spec, expected, "sparse", threads=threads, chunks=(1, 3, 7, 20)) for threads in (1, 3)]
    assert errors[0] == errors[1]
    assert errors[0] <= 1.05 * _error(spec, expected, "exact")


@pytest.mark.parametrize("gate_type", ["Q4_0", "Q4_K", "Q8_0"])
def test_gates_that_ask_for_records_are_those_of_many_rows(gate_type: str, spec_maker: Callable[..., Any]) -> None:
    """One row computes gates by a kernel of its own, on tiles of whole and of super-blocks."""
    maker = spec_maker(256)
    gate = Linear(_block_tensor(QuantType[gate_type], 224, 256, 3), maker.tensor(224, scale=0.1))
    up, down = _block_tensor(QuantType.Q4_0, 224, 256, 1), _block_tensor(QuantType.Q4_0, 256, 224, 2)
    block = replace(_gated(maker, gate).layers[0].feed_forward, up=Linear(up), down=Linear(down))
    spec = maker.model(Layer(maker.attention(), block))
    many, single = _run(spec, "sparse", 3, 20, 1)
    np.testing.assert_array_equal(single, many)


def test_neurons_that_fire_side_by_side_are_divided_too(spec_maker: Callable[..., Any]) -> None:
    """As in the half of a hybrid, whose first neurons are the hottest: parts of very unequal ranges, equal bits."""
    maker = spec_maker()
    bias = np.where(np.arange(640) < 70, 1e3, -0.5).astype(np.float32)
    gate = Linear(maker.tensor(640, 64), Tensor("bias", QuantType.F32, (640,), bias.view(np.uint8)))
    up, down = _block_tensor(QuantType.Q4_0, 640, 64, 1), _block_tensor(QuantType.Q4_0, 64, 640, 2)
    block = replace(_gated(maker, gate).layers[0].feed_forward, up=Linear(up), down=Linear(down))
    spec = maker.model(Layer(maker.attention(), block))
    expected = logits_of(ReferenceExecutor(spec, dtype=np.float64), TOKENS[:20])
    errors = [_error(spec, expected, "sparse", threads=threads, chunks=(1, 2, 5, 8, 20)) for threads in (1, 2, 16)]
    assert errors[0] == errors[1] == errors[2]
    assert errors[0] <= 1.05 * _error(spec, expected, "exact")


@pytest.mark.parametrize("isa", available_isas(), ids=lambda isa: isa.name)
def test_instruction_sets(isa: Isa, spec_maker: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Integer products are the same on all; only the order of float operations is not."""
    monkeypatch.setattr("localllm.kernels.cpu.executor.choose_isa", lambda: isa)
    maker = spec_maker(96)
    matrices = _block_tensor(QuantType.Q4_0, 64, 96, 1), _block_tensor(QuantType.Q4_1, 96, 64, 2)
    block = replace(maker.feed_forward(64), up=Linear(matrices[0]), down=Linear(matrices[1]),
                    activation=Activation.RELU_BOTH, post_norm=maker.norm())  # fmt: skip
    spec = maker.model(Layer(maker.attention(), block))
    expected = logits_of(ReferenceExecutor(spec, dtype=np.float64), TOKENS[:20])
    assert _error(spec, expected, "sparse", chunks=(20, 1)) < 0.02


def test_a_file_with_relu_is_run_sparse_by_itself_and_no_worse_than_dense(data_folder: Path) -> None:
    path = data_folder / "models" / "llama_relu.gguf"
    spec = load_spec(open_gguf(path))
    golden = np.load(path.with_suffix(".npz"))
    exact = golden["logits_exact"] if "logits_exact" in golden else golden["logits"]
    errors = {}
    modes: tuple[Mode | None, ...] = ("exact", "sparse", None)
    for mode in modes:
        executor = CpuExecutor(spec, ExecutorOptions(threads=1, mode=mode))
        assert ("sparse" in executor.describe()) == (mode != "exact")
        errors[mode] = float(np.sqrt(((logits_of(executor, golden["tokens"]) - exact) ** 2).mean()))
        executor.close()
    assert errors["sparse"] == errors[None] <= 1.1 * errors["exact"]


def test_counts_are_those_of_the_reference(spec_maker: Callable[..., Any]) -> None:
    """A gate that is its bias alone fires always or never."""
    maker = spec_maker()
    bias = np.where(np.arange(96) % 3 == 0, 1e3, -1e3).astype(np.float32)
    gate = Linear(maker.tensor(96, 64), Tensor("bias", QuantType.F32, (96,), bias.view(np.uint8)))
    mixture = Layer(maker.attention(), maker.experts(count=5, top_k=2))
    spec = maker.model(*_gated(maker, gate).layers, mixture)
    for threads in (1, 3):
        options = ExecutorOptions(threads=threads, max_rows=64, count_activations=True)
        executor = CpuExecutor(spec, options)
        logits_of(executor, TOKENS[:50], chunk=49)  # steps of many rows and of one
        counts = executor.activation_counts()
        executor.close()
        np.testing.assert_array_equal(counts[0], np.where(np.arange(96) % 3 == 0, 50, 0))
        assert counts[1].shape == (5,)
        assert counts[1].sum() == 100


def test_a_type_without_a_sparse_form_runs_dense_and_says_so(
    spec_maker: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    maker = spec_maker(256)
    block = replace(
        maker.feed_forward(256), down=Linear(_block_tensor(QuantType.IQ2_S, 256, 256, 3)), activation=Activation.RELU
    )
    spec = maker.model(Layer(maker.attention(), block))
    executor = CpuExecutor(spec, ExecutorOptions(threads=1, mode="sparse"))
    assert "sparse" not in executor.describe()
    executor.close()
    assert "IQ2_S run dense" in caplog.text

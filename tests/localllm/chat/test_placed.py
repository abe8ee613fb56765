"""What is where: all on the CPU, all on the GPU, or as a hybrid put it."""

from __future__ import annotations

from pathlib import Path

import pytest

from localllm.chat.placed import place
from localllm.gguf_io import open_gguf
from localllm.kernels.hybrid.placement import uniform_placement
from localllm.kernels.spec import ModelSpec
from localllm.models import load_spec
from localllm.placement import Machine, ModelParts, parts_of

MACHINE = Machine(cpu_bandwidth=2e10, cpu_multiplications=1e11, cpu_bytes=8 * 10**9, gpu_bandwidth=2e11, launch=0.0)


@pytest.fixture(scope="module")
def model(data_folder: Path) -> tuple[ModelSpec, ModelParts]:
    with open_gguf(data_folder / "models" / "llama_relu.gguf") as file:
        spec = load_spec(file)
        return spec, parts_of(spec, context=128)


def test_on_one_side(model: tuple[ModelSpec, ModelParts]) -> None:
    spec, parts = model
    cpu = place(spec, parts, MACHINE, {"cpu": 1000}, None, "no NVIDIA driver was found")
    assert [layer.gpu_bytes for layer in cpu.layers] == [0] * len(spec.layers)
    assert cpu.reasons == ("everything is on the CPU: no NVIDIA driver was found",)
    assert cpu.ends[-1][0].startswith("head, on the CPU")
    gpu = place(spec, parts, MACHINE, {"cpu": 0, "gpu": 1000}, None)
    assert all(layer.gpu_bytes == layer.nbytes for layer in gpu.layers)
    assert "head, on the GPU" in gpu.ends[-1][0]
    assert gpu.decode > 2 * cpu.decode
    assert [layer.nbytes for layer in cpu.layers] == [layer.nbytes for layer in parts.layers]


def test_a_hybrid_as_it_was_placed(model: tuple[ModelSpec, ModelParts]) -> None:
    spec, parts = model
    weights = {"cpu": 500, "gpu": 500}
    shares = [place(spec, parts, MACHINE, weights, uniform_placement(spec, share)) for share in (0.0, 0.5, 1.0)]
    sizes = [sum(layer.gpu_bytes for layer in each.layers) for each in shares]
    assert sizes == sorted(set(sizes))
    assert all(layer.gpu_bytes >= layer.attention_bytes + layer.kv_bytes for layer in shares[0].layers)
    assert all(layer.gpu_bytes == layer.nbytes for layer in shares[2].layers)
    assert "67% of the feed-forward units" in shares[1].reasons[1]  # two of three

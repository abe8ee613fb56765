"""A layer of the file that predicts one token further, against models of one layer that are run by themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from localllm import LLM
from localllm.errors import ConfigurationError
from localllm.gguf_io import QuantType, Tensor, dequantize, open_gguf
from localllm.gguf_io.writer import write_gguf
from localllm.kernels.reference import ReferenceExecutor
from localllm.kernels.single_sequence import allocate_for, simple_step
from localllm.kernels.spec import Embed, ModelSpec
from localllm.models import load_layers_ahead, load_spec
from localllm.speculation import NOTHING
from localllm.speculation.next_layer import NextLayer, NextLayerDrafter, load_next_layer

DATA = Path(__file__).parents[2] / "data" / "models"
Floats = npt.NDArray[np.float32]


def fixture(folder: Path, name: str, **changes: Floats | None) -> Path:
    """A model whose last layer is there once more, as one that predicts ahead; `changes` of its nextn tensors."""
    with open_gguf(DATA / f"{name}.gguf") as file:
        keys: dict[str, Any] = {key: file.metadata.get_raw(key) for key in file.metadata}
        tensors: dict[str, Any] = {t.name: (t.quant_type, t.shape, t.data) for t in file.tensors.values()}
        rows, hidden = file.tensors["token_embd.weight"].shape
    count = keys[f"{name}.block_count"]
    last = f"blk.{count - 1}."
    tensors |= {f"blk.{count}.{key[len(last) :]}": part for key, part in tensors.items() if key.startswith(last)}
    random = np.random.default_rng(4)
    own: dict[str, Floats | None] = {
        "eh_proj": random.normal(0, hidden**-0.5, (hidden, 2 * hidden)).astype(np.float32),
        "enorm": random.uniform(0.5, 1.5, hidden).astype(np.float32),
        "hnorm": random.uniform(0.5, 1.5, hidden).astype(np.float32),
        "shared_head_norm": random.uniform(0.5, 1.5, hidden).astype(np.float32),
    }
    for key, values in (own | changes).items():
        if values is not None:
            tensors[f"blk.{count}.nextn.{key}.weight"] = (QuantType.F32, values.shape, values)
    keys |= {
        f"{name}.block_count": count + 1,
        f"{name}.nextn_predict_layers": 1,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": ["AB", *(chr(ord("A") + index) for index in range(rows - 1))],
        "tokenizer.ggml.merges": ["A B"],
        "tokenizer.ggml.token_type": np.ones(rows, np.int32),
        "tokenizer.ggml.eos_token_id": np.uint32(0),
    }
    path = folder / f"{name}.gguf"
    write_gguf(path, keys, tensors)
    return path


def in_numpy(tensor: Tensor) -> Callable[[Floats], Floats]:
    matrix = dequantize(tensor).astype(np.float32)
    return lambda vector: matrix @ vector


def load(path: Path) -> tuple[ModelSpec, NextLayer]:
    file = open_gguf(path)
    spec = load_spec(file)
    return spec, load_next_layer(file, spec, in_numpy, ReferenceExecutor, context=64, parallel=2)


def alone(spec: ModelSpec, layer: NextLayer, table: Floats) -> ReferenceExecutor:
    """The layer and its head behind a table of inputs."""
    tensor = Tensor("table", QuantType.F32, table.shape, table.view(np.uint8))
    executor = ReferenceExecutor(
        replace(
            layer.executor.spec, embed=Embed(tensor), layers=layer.executor.spec.layers, head=layer.executor.spec.head
        )
    )
    allocate_for(executor, 64, "f16")
    return executor


def greedy(executor: ReferenceExecutor, tokens: list[int], count: int) -> list[int]:
    found = list(tokens)
    for _ in range(count):
        logits = executor.forward(simple_step(executor.layout, found))[-1]
        found.append(int(np.argmax(logits)))
    return found[len(tokens) :]


def normed(x: Floats) -> Floats:
    result: Floats = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)
    return result


@pytest.mark.parametrize("name", ["glm4moe", "deepseek2"])
def test_a_layer_that_looks_at_tokens_only_is_a_model_of_one_layer(tmp_path: Path, name: str) -> None:
    size = open_gguf(DATA / f"{name}.gguf").tensors["token_embd.weight"].columns
    eye = np.eye(size, dtype=np.float32)
    path = fixture(tmp_path, name, eh_proj=np.hstack([eye, 0 * eye]), enorm=np.ones(size, np.float32))
    spec, layer = load(path)
    table = normed(np.asarray(dequantize(spec.embed.table), np.float32) * np.float32(spec.embed.scale))
    judge, drafter = alone(spec, layer, table), NextLayerDrafter(layer)
    text, hidden = [3, 7, 11, 2, 9], np.ones((1, size), np.float32)
    for count, new in ((2, 1), (3, 1), (5, 2)):  # the newest rows of the text, as steps hand them over
        expected = greedy(judge, text[1:count], 4)
        for _ in range(2):  # the second time nothing is new
            draft = drafter.draft(text[:count], 4, np.repeat(hidden, new, 0))
            assert len(draft) >= 1
            assert list(draft.tokens) == expected[: len(draft)]
    drafter.close()


def test_what_a_layer_sees_of_the_vector(tmp_path: Path) -> None:
    size = open_gguf(DATA / "glm4moe.gguf").tensors["token_embd.weight"].columns
    eye = np.eye(size, dtype=np.float32)
    path = fixture(tmp_path, "glm4moe", eh_proj=np.hstack([0 * eye, eye]))
    spec, layer = load(path)
    gain = np.asarray(dequantize(open_gguf(path).tensors[f"blk.{len(spec.layers)}.nextn.hnorm.weight"]), np.float32)
    hidden = np.random.default_rng(1).normal(0, 3, (6, size)).astype(np.float32)
    judge = alone(spec, layer, normed(hidden) * gain)
    drafter = NextLayerDrafter(layer)
    for count in (2, 6):
        new = hidden[:2] if count == 2 else hidden[2:]
        draft = drafter.draft(list(range(count)), 1, new)
        assert draft.tokens == (int(np.argmax(judge.forward(simple_step(judge.layout, range(count)))[-1])),)
    drafter.close()


@pytest.mark.parametrize("name", ["glm4moe", "deepseek2"])
@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"temperature": 0.9, "seed": 5}])
def test_the_text_is_the_same(tmp_path: Path, name: str, sampling: dict[str, Any]) -> None:
    path = fixture(tmp_path, name)
    options: dict[str, Any] = {"device": "cpu", "threads": 1, "context": 128}
    prompt = [5, 9, 13, 2, 40, 7]
    with LLM(str(path), speculate="off", **options) as plain, LLM(str(path), speculate="next", **options) as guessing:
        expected = plain.generate(prompt, max_tokens=60, ignore_eos=True, **sampling)
        found = guessing.generate(prompt, max_tokens=60, ignore_eos=True, **sampling)
    assert found.ids == expected.ids
    assert found.usage.drafted_tokens > 0


def test_guesses_end_where_the_layer_has_no_room(tmp_path: Path) -> None:
    spec, layer = load(fixture(tmp_path, "glm4moe"))
    drafter = NextLayerDrafter(layer)
    random = np.random.default_rng(0)
    for count in range(1, 200):
        hidden = random.normal(0, 1, (1, spec.hidden_size)).astype(np.float32)
        assert len(drafter.draft([token % 50 for token in range(count)], 3, hidden)) >= 1
    drafter.close()
    assert drafter.draft([1], 3, None) == NOTHING


def test_files_without_such_a_layer_or_with_half_of_one_are_refused(tmp_path: Path) -> None:
    assert load_layers_ahead(open_gguf(DATA / "glm4moe.gguf")) == ()
    with pytest.raises(ConfigurationError, match="no layer that predicts"):
        load(DATA / "glm4moe.gguf")
    with pytest.raises(ConfigurationError, match=r"nextn.enorm.weight should be"):
        load(fixture(tmp_path, "glm4moe", enorm=None))
    with pytest.raises(ConfigurationError, match=r"nextn.hnorm.weight should be"):
        load(fixture(tmp_path, "glm4moe", hnorm=np.ones(3, np.float32)))

"""Specs from files: what is read, and what an unfit, broken or hostile file is told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from localllm.errors import LocalLLMError, UnsupportedModelError
from localllm.gguf_io import GGUFError, QuantType, dequantize, open_gguf, write_gguf
from localllm.kernels.reference import ReferenceExecutor
from localllm.kernels.single_sequence import logits_of
from localllm.kernels.spec import Activation, Attention, FeedForward, LatentAttention, MixtureOfExperts, ModelSpec
from localllm.models import ARCHITECTURES, load_spec

_DATA = Path(__file__).resolve().parents[2] / "data" / "models"
_FIXTURES = sorted(path.stem for path in _DATA.glob("*.gguf"))

Change = dict[str, Any]
Rewrite = Callable[..., Path]


def _rewrite(folder: Path, name: str, metadata: Change | None = None, tensors: Change | None = None) -> Path:
    """A fixture with other metadata or tensors; None takes one away."""
    with open_gguf(_DATA / f"{name}.gguf") as file:
        keys: Change = {key: file.metadata.get_raw(key) for key in file.metadata}
        parts: Change = {t.name: (t.quant_type, t.shape, t.data) for t in file.tensors.values()}
        magic = file.magic
    keys.update(metadata or {})
    parts.update(tensors or {})
    path = folder / "changed.gguf"
    kept = {name: part for name, part in parts.items() if part is not None}
    write_gguf(path, {key: value for key, value in keys.items() if value is not None}, kept, magic=magic)
    return path


@pytest.fixture
def rewrite(tmp_path: Path) -> Rewrite:
    return lambda *arguments: _rewrite(tmp_path, *arguments)


def _load(path: Path) -> ModelSpec:
    return load_spec(open_gguf(path))


def _fixture(name: str) -> ModelSpec:
    return _load(_DATA / f"{name}.gguf")


def _f32(*shape: int) -> tuple[QuantType, tuple[int, ...], Any]:
    return QuantType.F32, shape, np.ones(shape, np.float32)


def test_the_table_is_what_is_on_disk_and_every_architecture_has_a_fixture() -> None:
    import localllm.models

    files = Path(localllm.models.__file__).parent.glob("*.py")
    modules = {path.stem for path in files if path.stem != "__init__"}
    assert {name.replace("-", "_") for name in ARCHITECTURES} == modules
    assert list(ARCHITECTURES) == sorted(set(ARCHITECTURES))
    assert {_fixture(name).architecture for name in _FIXTURES} == set(ARCHITECTURES)


def test_an_unknown_architecture_is_named_and_the_known_ones_listed(rewrite: Rewrite) -> None:
    path = rewrite("qwen3", {"general.architecture": "mamba"})
    with pytest.raises(UnsupportedModelError, match=r"'mamba' is not supported") as caught:
        _load(path)
    assert "qwen3" in str(caught.value)
    assert "docs/architectures.md" in str(caught.value)


@pytest.mark.parametrize("name", ["../llama", "parts", "__init__", "llama\n", ""])
def test_an_architecture_is_never_a_path(rewrite: Rewrite, name: str) -> None:
    with pytest.raises(UnsupportedModelError):
        _load(rewrite("qwen3", {"general.architecture": name}))


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("qwen3", {"qwen3.embedding_length": None}, "qwen3.embedding_length"),
        ("qwen3", {"qwen3.embedding_length": "wide"}, "qwen3.embedding_length"),
        ("qwen3", {"qwen3.embedding_length": 64}, r"token_embd.weight: shape \(64, 32\), expected \(vocabulary, 64\)"),
        ("qwen3", {"qwen3.attention.head_count": 3}, "no multiple of 2 key/value heads"),
        ("qwen3", {"qwen3.attention.head_count": 0}, r"0 is outside 1\.\.4096"),
        ("qwen3", {"qwen3.attention.head_count": 2**32}, "outside"),
        ("qwen3", {"qwen3.block_count": 3}, r"blk\.2\.attn_norm\.weight is missing"),
        ("qwen3", {"qwen3.block_count": 4097}, "outside"),
        ("qwen3", {"qwen3.block_count": 1}, r"no use for .*blk\.1\."),
        ("qwen3", {"qwen3.rope.dimension_count": 7}, "7 is odd"),
        ("qwen3", {"qwen3.rope.freq_base": float("nan")}, "positive finite"),
        ("qwen3", {"qwen3.rope.freq_base": -1.0}, "positive finite"),
        ("qwen3", {"qwen3.rope.scaling.type": "spiral"}, "'spiral' is not supported"),
        ("qwen3", {"qwen3.attention.layer_norm_rms_epsilon": float("inf")}, "positive finite"),
        ("qwen3", {"qwen3.feed_forward_length": 97}, r"ffn_gate.weight: shape \(96, 32\), expected \(97, 32\)"),
        ("qwen3", {"qwen3.hidden_activation": "swizzle"}, "'swizzle' is not supported"),
        ("qwen3moe", {"qwen3moe.expert_used_count": 5}, "5 of 4 experts"),
        ("qwen3moe", {"qwen3moe.expert_gating_func": 9}, "9 is not supported"),
        ("glm4moe", {"glm4moe.expert_group_count": 4}, "groups of experts"),
        ("olmo", {"olmo.attention.clamp_kqv": 8.0}, "clamping"),
        ("baichuan", {"baichuan.block_count": 40}, "ALiBi"),
        ("gpt2", {"gpt2.context_length": 65}, "64 rows, expected at least 65"),
        ("opt", {"opt.context_length": 63}, "64 rows, expected at least 65"),
        ("gemma3", {"gemma3.attention.sliding_window_pattern": [True, False]}, "2 values, but there is a layer 2"),
        ("phi3", {"phi3.rope.scaling.original_context_length": None}, "original_context_length"),
    ],
)
def test_metadata_that_does_not_fit_is_named(rewrite: Rewrite, name: str, changes: Change, message: str) -> None:
    with pytest.raises(LocalLLMError, match=message):
        _load(rewrite(name, changes))


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("qwen3", {"token_embd.weight": None}, r"token_embd\.weight is missing"),
        ("qwen3", {"blk.1.attn_v.weight": None}, r"blk\.1\.attn_v\.weight is missing; .* shape \(32, 32\)"),
        ("qwen3", {"blk.0.attn_v.weight": _f32(31, 32)}, r"shape \(31, 32\), expected \(32, 32\)"),
        ("qwen3", {"blk.0.attn_v.weight": _f32(1, 32, 32)}, "expected"),
        ("qwen3", {"blk.0.attn_q.bias": _f32(63)}, r"attn_q\.bias: shape \(63,\), expected \(64,\)"),
        ("qwen3", {"blk.0.ffn_sub_norm.weight": _f32(96)}, "no use for 1 tensors"),
        ("qwen3", {"blk.0.attn_norm.weight": (QuantType.Q4_0, (32,), bytes(18))}, "type Q4_0, expected one of F32"),
        ("qwen3", {"blk.0.ffn_up.weight": (QuantType.I32, (96, 32), bytes(4 * 96 * 32))}, "does not hold weights"),
        ("phi3", {"rope_factors_long.weight": (QuantType.F32, (4,), bytes(16))}, "positive and finite"),
        ("powerinfer_llama", {"blk.0.fc2.weight": _f32(96, 31)}, r"fc2\.weight: shape \(96, 31\), expected \(96, 32\)"),
        ("deepseek2", {"blk.0.attn_kv_b.weight": _f32(95, 32)}, r"expected \(96, 32\)"),
    ],
)
def test_tensors_that_do_not_fit_are_named(rewrite: Rewrite, name: str, changes: Change, message: str) -> None:
    path = rewrite(name, None, changes)
    if name == "phi3":
        with pytest.raises(GGUFError, match=message):
            load_spec(open_gguf(path), context=100)
        return
    with pytest.raises(LocalLLMError, match=message) as raised:
        _load(path)
    assert str(raised.value).startswith(f"{path.name}: ")


_NUMBERS = [0, 1, 2, 3, 7, 8, 31, 33, 64, 96, 128, 2**31, 2**40, -1, 0.0, 1e-30, -2.5, 1e30, float("nan"), float("inf")]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(_FIXTURES), data=st.data())
def test_no_single_wrong_number_does_harm(tmp_path: Path, name: str, data: st.DataObject) -> None:
    """A file either loads and then runs, or is refused with a proper error."""
    with open_gguf(_DATA / f"{name}.gguf") as file:
        keys = [key for key in file.metadata if not key.startswith("general.")]
    key = data.draw(st.sampled_from(keys))
    try:
        spec = _load(_rewrite(tmp_path, name, {key: data.draw(st.sampled_from(_NUMBERS))}))
    except LocalLLMError:
        return
    with np.errstate(all="ignore"):
        assert logits_of(ReferenceExecutor(spec), [1, 2, 3]).shape == (3, spec.vocabulary_size)


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ("relu", Activation.RELU),
        ("silu", Activation.SILU),
        ("gelu", Activation.GELU),
        ("gelu_pytorch_tanh", Activation.GELU_TANH),
        ("relu2", Activation.RELU_SQUARED),
    ],
)
def test_the_stated_activation_wins(rewrite: Rewrite, stated: str, expected: Activation) -> None:
    for name in ("qwen3", "gemma2", "arcee"):
        spec = _load(rewrite(name, {f"{name}.hidden_activation": stated}))
        assert {layer.feed_forward.activation for layer in spec.layers} == {expected}
    spec = _load(rewrite("qwen3moe", {"qwen3moe.hidden_activation": stated}))
    assert spec.layers[0].feed_forward.activation is expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ReluLLaMA-7B", Activation.RELU),
        ("prosparse-llama-2-13b", Activation.RELU),
        ("TurboSparse-Mistral-Instruct", Activation.RELU_BOTH),
        ("Llama-2-7b", Activation.SILU),
    ],
)
def test_models_retrained_with_relu_are_known_by_name(rewrite: Rewrite, name: str, expected: Activation) -> None:
    spec = _load(rewrite("llama_relu", {"general.name": name, "llama.hidden_activation": None}))
    assert spec.layers[0].feed_forward.activation is expected


@pytest.mark.parametrize(
    ("name", "activation"),
    [
        ("powerinfer_llama", Activation.RELU),
        ("powerinfer_falcon", Activation.RELU),
        ("powerinfer_bamboo", Activation.RELU_BOTH),
        ("opt", Activation.RELU),
    ],
)
def test_powerinfer_files_have_a_row_a_neuron_and_a_predictor(name: str, activation: Activation) -> None:
    for layer in _fixture(name).layers:
        block = layer.feed_forward
        assert isinstance(block, FeedForward)
        assert block.activation is activation
        assert block.down_transposed
        assert block.down.weight.shape == block.up.weight.shape
        assert block.predictor is not None
        first, second = block.predictor
        assert (first.weight.shape, second.weight.shape) == ((32, 32), (96, 32))


def test_fused_tensors_become_row_slices_without_copies() -> None:
    spec, file = _fixture("phi3"), open_gguf(_DATA / "phi3.gguf")
    attention, block = spec.layers[1].attention, spec.layers[1].feed_forward
    assert isinstance(attention, Attention)
    assert isinstance(block, FeedForward)
    fused = dequantize(file.tensors["blk.1.attn_qkv.weight"])
    slices = [dequantize(linear.weight) for linear in (attention.query, attention.key, attention.value)]
    np.testing.assert_array_equal(np.concatenate(slices), fused)
    assert block.gate is not None
    both = dequantize(file.tensors["blk.1.ffn_up.weight"])
    np.testing.assert_array_equal(np.concatenate([dequantize(block.gate.weight), dequantize(block.up.weight)]), both)
    assert not block.gate.weight.data.flags.owndata


def test_undivided_latent_projections_are_divided(rewrite: Rewrite) -> None:
    """attn_kv_b as attn_k_b and attn_v_b, as newer files have it, gives the same logits."""
    spec = _fixture("deepseek2")
    changes: Change = {}
    for index, layer in enumerate(spec.layers):
        attention = layer.attention
        assert isinstance(attention, LatentAttention)
        changes[f"blk.{index}.attn_kv_b.weight"] = None
        for name, tensor in (("k", attention.key_up), ("v", attention.value_up)):
            changes[f"blk.{index}.attn_{name}_b.weight"] = tensor.quant_type, tensor.shape, tensor.data
    lengths = {"key_length": 40, "value_length": 32, "key_length_mla": 24, "value_length_mla": 8}
    divided = _load(rewrite("deepseek2", {f"deepseek2.attention.{k}": v for k, v in lengths.items()}, changes))
    expected = logits_of(ReferenceExecutor(spec), range(9))
    np.testing.assert_allclose(logits_of(ReferenceExecutor(divided), range(9)), expected, rtol=0, atol=1e-5)


def test_transposed_expert_matrices_give_the_same_logits(rewrite: Rewrite) -> None:
    """As SmallThinker's converter may store them: recognised by their shape."""
    spec = _fixture("qwen3moe")
    changes: Change = {}
    for index, layer in enumerate(spec.layers):
        assert isinstance(layer.feed_forward, MixtureOfExperts)
        turned = np.ascontiguousarray(dequantize(layer.feed_forward.down.weight)[..., :24].swapaxes(1, 2))
        for part in ("gate", "up"):
            data = dequantize(getattr(layer.feed_forward, part).weight)[:, :24]
            changes[f"blk.{index}.ffn_{part}_exps.weight"] = QuantType.F32, data.shape, np.ascontiguousarray(data)
        changes[f"blk.{index}.ffn_down_exps.weight"] = QuantType.F32, turned.shape, turned
    narrow = {"qwen3moe.expert_feed_forward_length": 24}
    turned_spec = _load(rewrite("qwen3moe", narrow, changes))
    for name, (kind, shape, data) in changes.items():
        if "down" in name:
            changes[name] = kind, (shape[0], shape[2], shape[1]), np.ascontiguousarray(data.swapaxes(1, 2))
    plain = _load(rewrite("qwen3moe", narrow, changes))
    first, second = turned_spec.layers[0].feed_forward, plain.layers[0].feed_forward
    assert isinstance(first, MixtureOfExperts)
    assert first.down_transposed
    assert not second.down_transposed
    expected = logits_of(ReferenceExecutor(plain), range(9))
    np.testing.assert_allclose(logits_of(ReferenceExecutor(turned_spec), range(9)), expected, rtol=0, atol=1e-5)


def test_layers_that_predict_ahead_are_left_out(rewrite: Rewrite) -> None:
    extra = {"blk.2.nextn.eh_proj.weight": _f32(32, 64), "blk.2.attn_norm.weight": _f32(32)}
    spec = _load(rewrite("glm4moe", {"glm4moe.block_count": 3, "glm4moe.nextn_predict_layers": 1}, extra))
    assert len(spec.layers) == 2


def test_a_tied_head_is_the_table_itself() -> None:
    assert (spec := _fixture("gemma")).head.linear.weight is spec.embed.table
    assert (spec := _fixture("qwen3")).head.linear.weight is not spec.embed.table


def test_ministral_is_refused_beyond_its_original_context() -> None:
    file = open_gguf(_DATA / "ministral3.gguf")
    load_spec(file, context=16384)
    with pytest.raises(UnsupportedModelError, match="beyond 16384 tokens"):
        load_spec(file, context=16385)

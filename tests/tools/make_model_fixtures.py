"""Makes tests/data/models/<name>.gguf and .npz for architectures that `transformers` implements, with its logits.

    pip install torch transformers
    python tests/tools/make_model_fixtures.py [NAME...]

A tiny model of seeded random weights is built by `transformers`; its matrices are rounded to Q4_0, so that the file
holds exactly its weights; it computes the logits in float64 (its norms and angles in float32); then its tensors are
renamed, rows put into the file's order, and written. Only a developer who adds an architecture needs this.
"""

from __future__ import annotations

import re
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from localllm.gguf_io import QuantType, Tensor, dequantize, open_gguf, quantize, write_gguf
from tests.tools.model_families import (
    FAMILIES,
    HEADS,
    HIDDEN,
    KV_HEADS,
    LAYERS,
    NEURONS,
    VOCABULARY,
    Family,
)

FOLDER = Path(__file__).resolve().parents[1] / "data" / "models"
Values = npt.NDArray[np.float64]

TOKENS = 24

# what `transformers` calls a tensor (after its layer prefix) and what the file does; {} is .weight or .bias
NAMES = {
    r"(model\.|model\.decoder\.)embed_tokens|transformer\.(word_embeddings|wte)|gpt_neox\.embed_in": "token_embd",
    r"transformer\.wpe|model\.decoder\.embed_positions": "position_embd",
    r"model\.(norm|final_layernorm)|transformer\.ln_f|(gpt_neox|model\.decoder)\.final_layer_norm": "output_norm",
    r"lm_head": "output",
    r"input_layernorm|ln_1|ln_mlp|self_attn_layer_norm": "attn_norm",
    r"ln_attn": "attn_norm_2",
    r"self_attn\.q_proj": "attn_q",
    r"self_attn\.k_proj": "attn_k",
    r"self_attn\.v_proj": "attn_v",
    r"self_attn\.(o_proj|dense|out_proj)|self_attention\.dense|attention\.dense|attn\.c_proj": "attn_output",
    r"self_attention\.query_key_value|attention\.query_key_value|attn\.c_attn|self_attn\.qkv_proj": "attn_qkv",
    r"self_attn\.q_a_proj": "attn_q_a",
    r"self_attn\.q_a_layernorm": "attn_q_a_norm",
    r"self_attn\.q_b_proj": "attn_q_b",
    r"self_attn\.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    r"self_attn\.kv_a_layernorm": "attn_kv_a_norm",
    r"self_attn\.kv_b_proj": "attn_kv_b",
    r"self_attn\.sinks": "attn_sinks",
    r"self_attn\.(q_norm|query_layernorm)": "attn_q_norm",
    r"self_attn\.(k_norm|key_layernorm)": "attn_k_norm",
    r"post_attention_layernorm|ln_2|final_layer_norm": "ffn_norm",
    r"post_self_attn_layernorm": "post_attention_norm",
    r"(post_mlp|post_feedforward)_layernorm": "post_ffw_norm",
    r"mlp\.gate_proj": "ffn_gate",
    r"mlp\.(up_proj|gate_up_proj|fc1|dense_h_to_4h|c_fc)|fc1": "ffn_up",
    r"mlp\.(down_proj|fc2|dense_4h_to_h|c_proj)|fc2": "ffn_down",
    r"mlp\.gate(\.wg)?|(mlp|block_sparse_moe)\.router": "ffn_gate_inp",
    r"mlp\.shared_expert_gate": "ffn_gate_inp_shexp",
    r"mlp\.shared_(experts?|mlp)\.gate_proj": "ffn_gate_shexp",
    r"mlp\.shared_(experts?|mlp)\.up_proj": "ffn_up_shexp",
    r"mlp\.shared_(experts?|mlp)\.down_proj|shared_mlp\.output_linear": "ffn_down_shexp",
    r"(mlp|block_sparse_moe)\.experts\.down_proj": "ffn_down_exps",
}  # fmt: skip
DOWN = re.compile(r"(down_proj|fc2|dense_4h_to_h)\.weight$")
UNROUNDED = (".bias", "ffn_gate_inp", "position_embd", "attn_q_norm", "attn_k_norm", "exp_probs_b", "norm")


def build_model(family: Family, seed: int) -> Any:
    """A model in float64 whose weights are seeded and, where the file rounds them, rounded."""
    options: dict[str, Any] = {
        "vocab_size": VOCABULARY, "hidden_size": HIDDEN, "intermediate_size": NEURONS, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "max_position_embeddings": 512,
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "attn_implementation": "eager",
        "experts_implementation": "eager",
    }  # fmt: skip
    config = getattr(transformers, family.config)(**{**options, **family.options})
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float64).eval()
    random = np.random.default_rng(seed)
    for name, tensor in named_tensors(model):
        shape = tuple(tensor.shape)
        values = random.standard_normal(shape)
        if "norm" in name or "ln_" in name:
            gain = 0.0 if name.endswith("bias") else 1.0
            values = (values * 0.2 + gain).astype(np.float32).astype(np.float64) - family.shift * gain
        elif name.endswith(("bias", "sinks")):
            values = (values * 0.2).astype(np.float32).astype(np.float64)
        else:
            embeds = "embed" in name or "wte" in name
            scale = family.head_gain if name.startswith("lm_head") else 1.0
            if not embeds:
                scale /= shape[-2 if is_transposed(family, name) else -1] ** 0.5
            elif config.tie_word_embeddings:
                scale = 0.5
            values *= scale
            across = is_transposed(family, name) or (family.transposed_down and DOWN.search(name) is not None)
            values = rounded(name, values.swapaxes(-1, -2)).swapaxes(-1, -2) if across else rounded(name, values)
        with torch.no_grad():
            tensor.copy_(torch.from_numpy(np.ascontiguousarray(values)))
    if family.double_relu:
        for layer in model.model.layers:
            layer.mlp.up_proj.register_forward_hook(lambda _module, _inputs, output: torch.relu(output))
    return model


def named_tensors(model: Any) -> Iterator[tuple[str, Any]]:
    """Every parameter once, and the buffers that the file has too."""
    yield from model.named_parameters()
    known = {name for name, _ in model.named_parameters()}
    yield from ((n, b) for n, b in model.named_buffers() if n.endswith("e_score_correction_bias") and n not in known)


def is_transposed(family: Family, name: str) -> bool:
    """GPT-2 stores its matrices (inputs, outputs), and gpt-oss those of its experts."""
    if family.config == "GptOssConfig":
        return name.endswith(("experts.gate_up_proj", "experts.down_proj"))
    return family.config == "GPT2Config" and ".c_" in name and name.endswith("weight")


def rounded(name: str, values: Values) -> Values:
    """The values that Q4_0 blocks along the last dimension can hold; routers and positions only to float32."""
    if any(part in name for part in ("mlp.gate.", "router", "shared_expert_gate", "wpe", "embed_positions")):
        return values.astype(np.float32).astype(np.float64)
    return stored(values)[1]


def stored(values: Values) -> tuple[npt.NDArray[np.uint8], Values]:
    """Q4_0 blocks, and what they hold."""
    blocks = quantize(values.astype(np.float32), QuantType.Q4_0)
    back: Values = dequantize_blocks(blocks, values.shape)
    return blocks, back


def dequantize_blocks(blocks: npt.NDArray[np.uint8], shape: tuple[int, ...]) -> Values:
    """Q4_0 blocks as float64."""
    data = blocks.view(np.uint8).reshape(*shape[:-1], -1)
    return dequantize(Tensor("", QuantType.Q4_0, shape, data)).astype(np.float64)


def converted(family: Family, model: Any) -> dict[str, Values]:
    """The file's tensors by name."""
    found: dict[str, Values] = {}
    for name, tensor in named_tensors(model):
        values: Values = tensor.detach().numpy()
        if is_transposed(family, name):
            values = values.swapaxes(-1, -2)
        layer = re.search(r"(?:layers|h)\.(\d+)\.", name)
        local = name[layer.end() :] if layer else name
        prefix = f"blk.{layer.group(1)}." if layer else ""
        for file_name, part in parts(family, local, values):
            found[prefix + file_name] = part
    if family.fuse_qkv:
        for layer_index in range(model.config.num_hidden_layers):
            for kind in ("weight", "bias"):
                names = [f"blk.{layer_index}.attn_{letter}.{kind}" for letter in "qkv"]
                if names[0] in found:
                    found[f"blk.{layer_index}.attn_qkv.{kind}"] = np.concatenate([found.pop(name) for name in names])
    for base in sorted(
        {name.rpartition(".")[0] for name in found if name.count(".") == 4}
    ):  # one tensor a head: stack them
        heads = sorted(name for name in found if name.startswith(base))
        found[base] = np.concatenate([found.pop(name) for name in heads])
    if family.transposed_down:
        transpose_down(found)
    return found


def parts(family: Family, local: str, values: Values) -> Iterator[tuple[str, Values]]:
    """One tensor of `transformers` as one or more of the file."""
    if local.endswith("e_score_correction_bias"):
        yield "exp_probs_b.bias", values.reshape(-1)
        return
    if local.endswith("experts.down_proj_bias"):
        yield "ffn_down_exps.bias", values
        return
    if ".experts.gate_up_proj" in local and family.config == "GptOssConfig":  # gate and up row by row in turn
        kind = "bias" if local.endswith("bias") else "weight"
        yield f"ffn_gate_exps.{kind}", values[:, 0::2]
        yield f"ffn_up_exps.{kind}", values[:, 1::2]
        return
    if local.endswith("experts.gate_up_proj"):
        half = values.shape[1] // 2
        yield "ffn_gate_exps.weight", values[:, :half]
        yield "ffn_up_exps.weight", values[:, half:]
        return
    if local == "shared_mlp.input_linear.weight":
        half = len(values) // 2
        yield "ffn_gate_shexp.weight", values[:half]
        yield "ffn_up_shexp.weight", values[half:]
        return
    if head := re.fullmatch(r"self_attn\.([qk])_layernorm\.norms\.(\d+)\.weight", local):
        yield f"attn_{head.group(1)}_norm.weight.{head.group(2)}", values[None]
        return
    stem, _, kind = local.rpartition(".") if local.endswith((".weight", ".bias")) else (local, "", "weight")
    file_stem = family.rename.get(stem) or next(v for k, v in NAMES.items() if re.fullmatch(k, stem))
    if file_stem == "ffn_gate_inp_shexp":
        values = values[0]
    if "norm" in file_stem and kind == "weight":
        values = values + family.shift
    if family.interleave and file_stem in ("attn_q", "attn_k"):
        values = adjacent_pairs(values, family.head_dim)
    if file_stem == "attn_qkv" and family.config == "FalconConfig":
        groups = family.options.get("num_kv_heads", 1)
        values = by_kind(values, groups, len(values) // family.head_dim // groups - 2)
    if file_stem == "attn_qkv" and family.config == "GPTNeoXConfig":
        values = by_kind(values, HEADS, 1)
    yield f"{file_stem}.{kind}", values


def adjacent_pairs(rows: Values, head_dim: int) -> Values:
    """Rows (head, half, pair) as (head, pair, half)."""
    heads = len(rows) // head_dim
    return rows.reshape(heads, 2, head_dim // 2, -1).swapaxes(1, 2).reshape(rows.shape)


def by_kind(rows: Values, groups: int, queries: int) -> Values:
    """Rows (group, queries + key + value, head) as all queries, all keys, all values."""
    split = rows.reshape(groups, queries + 2, len(rows) // groups // (queries + 2), -1)
    kinds = (split[:, :queries], split[:, queries : queries + 1], split[:, queries + 1 :])
    return np.concatenate([kind.reshape(-1, *rows.shape[1:]) for kind in kinds])


def transpose_down(found: dict[str, Values]) -> None:
    """Down matrices a row a neuron, and a predictor of random numbers (no exact mode reads it)."""
    random = np.random.default_rng(5)
    for name in [name for name in found if ".ffn_down." in name]:
        values = found.pop(name)
        found[name.replace("ffn_down", "ffn_down_t")] = values.T if values.ndim == 2 else values
        if values.ndim == 2:
            prefix = name.split("ffn_down")[0]
            found[f"{prefix}fc1.weight"] = random.standard_normal((32, HIDDEN))
            found[f"{prefix}fc2.weight"] = random.standard_normal((NEURONS, 32))


def metadata_of(name: str, family: Family, model: Any) -> dict[str, Any]:
    """The file's keys."""
    config = model.config
    epsilon = getattr(config, "rms_norm_eps", None)
    key = f"attention.layer_norm_{'' if epsilon is None else 'rms_'}epsilon"
    names = ("layer_norm_eps", "norm_eps", "norm_epsilon", "layer_norm_epsilon")
    others = [getattr(config, other) for other in names if getattr(config, other, None) is not None]
    values: dict[str, Any] = {
        "context_length": config.max_position_embeddings,
        "embedding_length": HIDDEN,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": NEURONS,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        key: float(epsilon if epsilon is not None else (others or [1e-5])[0]),
    }
    rope = getattr(config, "rope_parameters", None)
    if rope:
        values["rope.freq_base"] = float(rope.get("rope_theta") or rope["full_attention"]["rope_theta"])
    if "head_dim" in family.options:
        values |= {"attention.key_length": family.head_dim, "attention.value_length": family.head_dim}
    values |= family.metadata
    general = {"general.architecture": family.architecture, "general.name": name}
    return general | {f"{family.architecture}.{k}": v for k, v in values.items()}


def make(name: str, family: Family) -> None:
    """Write one fixture."""
    seed = zlib.crc32(name.encode())  # its own, whatever families are added
    model = build_model(family, seed)
    tokens = np.random.default_rng(seed).integers(0, VOCABULARY, TOKENS).astype(np.int32)
    with torch.no_grad():
        logits = model(torch.from_numpy(tokens[None].astype(np.int64)), use_cache=False).logits[0].numpy()
    tensors: dict[str, tuple[QuantType, tuple[int, ...], Any]] = {}
    for tensor_name, values in converted(family, model).items():
        if values.ndim < 2 or any(part in tensor_name for part in UNROUNDED):
            exact = values.astype(np.float32).astype(np.float64)
            tensors[tensor_name] = QuantType.F32, values.shape, exact.astype(np.float32)
        else:
            blocks, exact = stored(values)
            tensors[tensor_name] = QuantType.Q4_0, values.shape, blocks
        if not np.array_equal(exact, values) and ".fc" not in tensor_name:
            raise SystemExit(f"{name}: {tensor_name} is not stored exactly: {np.abs(exact - values).max()}")
    factors = family.options.get("rope_parameters", {})
    for length in ("long", "short"):
        if f"{length}_factor" in factors:
            divisors = np.array(factors[f"{length}_factor"], np.float32)
            tensors[f"rope_factors_{length}.weight"] = QuantType.F32, divisors.shape, divisors
    path = FOLDER / f"{name}.gguf"
    write_gguf(path, metadata_of(name, family, model), tensors, magic="PWRI" if family.transposed_down else "GGUF")
    np.savez_compressed(path.with_suffix(".npz"), tokens=tokens, logits=logits.astype(np.float32))
    open_gguf(path).close()
    print(f"{name}: {path.stat().st_size} bytes, logits of deviation {logits.std():.2f}")


if __name__ == "__main__":
    for chosen in sys.argv[1:] or FAMILIES:
        make(chosen, FAMILIES[chosen])

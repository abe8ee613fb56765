"""The fixtures that make_model_fixtures.py can make: configurations of `transformers`, and what the files say."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

VOCABULARY, HIDDEN, NEURONS, HEADS, KV_HEADS, LAYERS, EXPERTS = 64, 32, 96, 4, 2, 2, 4


@dataclass(frozen=True)
class Family:
    """One fixture: the configuration of `transformers`, and what the file says beside the common sizes."""

    architecture: str
    config: str
    options: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    interleave: bool = False  # rows of queries and keys go from half-split pairs to adjacent ones
    shift: float = 0.0  # what the file's norm gains have over those of `transformers`
    rename: dict[str, str] = field(default_factory=dict)
    fuse_qkv: bool = False
    transposed_down: bool = False  # PowerInfer's file: a row a neuron, a predictor, the magic PWRI
    double_relu: bool = False
    head_gain: float = 3.0  # deviation of the logits, where the output matrix is not the embedding table

    @property
    def head_dim(self) -> int:
        """Values of a head."""
        size: int = self.options.get("head_dim", HIDDEN // HEADS)
        return size


RMS = "attention.layer_norm_rms_epsilon"
LAYER = "attention.layer_norm_epsilon"
MOE = {"expert_count": EXPERTS, "expert_used_count": 2}
SMALL_MOE = {**MOE, "expert_feed_forward_length": 32, "expert_shared_count": 1, "leading_dense_block_count": 1}
SMALL_OPTIONS = {
    "n_routed_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}
WIDE = {"head_dim": 16}  # heads wider than hidden / heads, where the configuration has the choice
GPT = {"n_embd": HIDDEN, "n_layer": 2, "n_head": HEADS, "max_position_embeddings": 64, "n_inner": NEURONS}
POST_NORMS = {"post_attention_layernorm": "post_attention_norm"}

QWEN3_MOE = {
    **WIDE,
    "num_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
}
LATENT_OPTIONS = {
    "q_lora_rank": 32,
    "num_key_value_heads": HEADS,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
}
LATENT = {
    "attention.head_count_kv": HEADS,
    "attention.q_lora_rank": 32,
    "attention.kv_lora_rank": 32,
    "attention.key_length": 24,
    "attention.value_length": 8,
    "rope.dimension_count": 8,
}
GEMMA = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.3, 1.6],
    "long_factor": [1.0, 2.0, 4.0, 8.0],
    "attention_factor": 1.1,
    "original_max_position_embeddings": 64,
}

FAMILIES = {
    "qwen2": Family("qwen2", "Qwen2Config"),
    "qwen2vl": Family("qwen2vl", "Qwen2Config"),
    "qwen2moe": Family(
        "qwen2moe",
        "Qwen2MoeConfig",
        {
            "num_experts": EXPERTS,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 64,
            "norm_topk_prob": False,
        },
        {"expert_feed_forward_length": 32, "expert_shared_feed_forward_length": 64, **MOE},
    ),
    "qwen3": Family("qwen3", "Qwen3Config", {**WIDE}),
    "qwen3vl": Family("qwen3vl", "Qwen3Config", {**WIDE}),
    "qwen3moe": Family("qwen3moe", "Qwen3MoeConfig", QWEN3_MOE, {"expert_feed_forward_length": 32, **MOE}),
    "qwen3vlmoe": Family("qwen3vlmoe", "Qwen3MoeConfig", QWEN3_MOE, {"expert_feed_forward_length": 32, **MOE}),
    "olmoe": Family(
        "olmoe",
        "OlmoeConfig",
        {"num_experts": EXPERTS, "num_experts_per_tok": 2, "intermediate_size": 32, "norm_topk_prob": False},
        {"feed_forward_length": 32, **MOE},
    ),
    "gemma2": Family(
        "gemma2",
        "Gemma2Config",
        {
            **WIDE,
            "sliding_window": 8,
            "attn_logit_softcapping": 8.0,
            "final_logit_softcapping": 6.0,
            "query_pre_attn_scalar": 16,
        },
        {"attention.sliding_window": 8, "attn_logit_softcapping": 8.0, "final_logit_softcapping": 6.0},
        shift=1.0,
        rename=GEMMA,
    ),
    "gemma3": Family(
        "gemma3",
        "Gemma3TextConfig",
        {**WIDE, "sliding_window": 8, "num_hidden_layers": 6, "query_pre_attn_scalar": 16},
        {"attention.sliding_window": 8},
        shift=1.0,
        rename=GEMMA,
    ),
    "phi3": Family(
        "phi3",
        "Phi3Config",
        {"sliding_window": 8, "rope_parameters": LONGROPE},
        {"attention.sliding_window": 8, "rope.scaling.original_context_length": 64, "rope.scaling.attn_factor": 1.1},
        rename={"self_attn.qkv_proj": "attn_qkv"},
    ),
    "granite": Family(
        "granite",
        "GraniteConfig",
        {"embedding_multiplier": 2.0, "logits_scaling": 1.5, "residual_multiplier": 0.5, "attention_multiplier": 0.2},
        {"embedding_scale": 2.0, "logit_scale": 1.5, "residual_scale": 0.5, "attention.scale": 0.2},
        interleave=True,
    ),
    "arcee": Family("arcee", "ArceeConfig", interleave=True),
    "gpt_oss": Family(
        "gpt-oss",
        "GptOssConfig",
        {
            **WIDE,
            "num_local_experts": EXPERTS,
            "num_experts_per_tok": 2,
            "intermediate_size": 32,
            "sliding_window": 8,
            "rope_parameters": {"rope_type": "default", "rope_theta": 150000.0},
        },
        {"expert_feed_forward_length": 32, "attention.sliding_window": 8, **MOE},
        rename=POST_NORMS,
    ),
    "deepseek2": Family(
        "deepseek2",
        "DeepseekV3Config",
        {**LATENT_OPTIONS, "routed_scaling_factor": 1.5, "norm_topk_prob": True, **SMALL_OPTIONS},
        {**LATENT, "expert_weights_scale": 1.5, "expert_weights_norm": True, "expert_gating_func": 2, **SMALL_MOE},
    ),
    "gemma": Family("gemma", "GemmaConfig", {"head_dim": 16}, shift=1.0),
    "command_r": Family("command-r", "CohereConfig", {"logit_scale": 0.25}, {"logit_scale": 0.25}),
    "command_r_plus": Family(
        "command-r", "CohereConfig", {"use_qk_norm": True, "logit_scale": 0.5}, {"logit_scale": 0.5}
    ),
    "cohere2": Family(
        "cohere2",
        "Cohere2Config",
        {"sliding_window": 8, "num_hidden_layers": 4, "logit_scale": 0.5},
        {"logit_scale": 0.5, "attention.sliding_window": 8},
    ),
    "falcon": Family(
        "falcon",
        "FalconConfig",
        {
            "new_decoder_architecture": False,
            "multi_query": True,
            "alibi": False,
            "bias": False,
            "ffn_hidden_size": NEURONS,
        },
        {"attention.head_count_kv": 1},
    ),
    "falcon_40b": Family(
        "falcon",
        "FalconConfig",
        {
            "new_decoder_architecture": True,
            "num_kv_heads": KV_HEADS,
            "alibi": False,
            "bias": False,
            "ffn_hidden_size": NEURONS,
        },
    ),
    "phi2": Family("phi2", "PhiConfig", {}, {"rope.dimension_count": 4}, fuse_qkv=True),
    "stablelm": Family("stablelm", "StableLmConfig", {"use_qkv_bias": True}, {"rope.dimension_count": 2}),
    "stablelm_12b": Family(
        "stablelm", "StableLmConfig", {"use_parallel_residual": True, "qk_layernorm": True}, {"rope.dimension_count": 2}
    ),
    "chatglm": Family(
        "chatglm", "GlmConfig", {**WIDE, "attention_bias": True}, {"rope.dimension_count": 8}, fuse_qkv=True
    ),
    "glm4": Family(
        "glm4", "Glm4Config", {**WIDE}, {"rope.dimension_count": 8}, rename={"post_attention_layernorm": "ffn_norm"}
    ),
    "glm4moe": Family(
        "glm4moe",
        "Glm4MoeConfig",
        {**WIDE, "use_qk_norm": True, "routed_scaling_factor": 1.5, **SMALL_OPTIONS},
        {"rope.dimension_count": 8, "expert_weights_scale": 1.5, **SMALL_MOE},
        rename=POST_NORMS,
    ),
    "exaone": Family("exaone", "LlamaConfig"),
    "exaone4": Family(
        "exaone4",
        "Exaone4Config",
        {**WIDE, "sliding_window": 8, "sliding_window_pattern": 4, "num_hidden_layers": 4},
        {"attention.sliding_window": 8},
        rename=POST_NORMS,
    ),
    "nemotron": Family("nemotron", "NemotronConfig", {**WIDE}, {"rope.dimension_count": 8}, shift=1.0),
    "smollm3": Family(
        "smollm3", "SmolLM3Config", {"num_hidden_layers": 4, "no_rope_layer_interval": 4}, interleave=True
    ),
    "gpt2": Family("gpt2", "GPT2Config", GPT, {"attention.head_count_kv": HEADS}),
    "gptneox": Family("gptneox", "GPTNeoXConfig", {}, {"attention.head_count_kv": HEADS, "rope.dimension_count": 2}),
    "gptneox_serial": Family(
        "gptneox",
        "GPTNeoXConfig",
        {"use_parallel_residual": False},
        {"attention.head_count_kv": HEADS, "rope.dimension_count": 2, "use_parallel_residual": False},
    ),
    "olmo": Family("olmo", "OlmoConfig", {}, {LAYER: 1e-5}, interleave=True),
    "olmo3": Family(
        "olmo2",
        "Olmo3Config",
        {"sliding_window": 8, "num_hidden_layers": 4},
        {"attention.sliding_window": 8},
        rename=POST_NORMS,
    ),
    "starcoder": Family("starcoder", "GPTBigCodeConfig", GPT, {"attention.head_count_kv": 1}),
    "starcoder2": Family("starcoder2", "Starcoder2Config", {"sliding_window": None}),
    "opt": Family(
        "opt",
        "OPTConfig",
        {"ffn_dim": NEURONS, "word_embed_proj_dim": HIDDEN, "max_position_embeddings": 62},
        {"attention.head_count_kv": HEADS, "context_length": 62},
        transposed_down=True,
    ),
    "ernie4_5": Family("ernie4_5", "Ernie4_5Config", {**WIDE}),
    "ernie4_5_moe": Family(
        "ernie4_5-moe",
        "Ernie4_5_MoeConfig",
        {
            "moe_num_experts": EXPERTS,
            "moe_k": 2,
            "moe_intermediate_size": 32,
            "moe_num_shared_experts": 1,
            "moe_layer_start_index": 1,
        },
        {"interleave_moe_layer_step": 1, **SMALL_MOE},
    ),
    "hunyuan_dense": Family("hunyuan-dense", "HunYuanDenseV1Config", {**WIDE}),
    "hunyuan_moe": Family(
        "hunyuan-moe",
        "HunYuanMoEV1Config",
        {**WIDE, "num_experts": EXPERTS, "moe_topk": 2, "intermediate_size": 32},
        {"expert_shared_feed_forward_length": 32, "expert_feed_forward_length": 32, **MOE},
    ),
    "ministral3": Family(
        "mistral3",
        "Ministral3Config",
        {**WIDE},
        {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 16.0,
            "rope.scaling.original_context_length": 16384,
            "rope.scaling.yarn_log_multiplier": 1.0,
            "attention.temperature_scale": 0.1,
        },
        interleave=True,
    ),
    "granitemoe": Family(
        "granitemoe",
        "GraniteMoeSharedConfig",
        {
            "num_local_experts": EXPERTS,
            "num_experts_per_tok": 2,
            "shared_intermediate_size": 64,
            "intermediate_size": 32,
            "embedding_multiplier": 2.0,
            "logits_scaling": 1.5,
            "residual_multiplier": 0.5,
            "attention_multiplier": 0.2,
        },
        {
            "embedding_scale": 2.0,
            "logit_scale": 1.5,
            "residual_scale": 0.5,
            "attention.scale": 0.2,
            "expert_shared_feed_forward_length": 64,
            "feed_forward_length": 32,
            **MOE,
        },
        interleave=True,
    ),
    "deepseek": Family(
        "deepseek",
        "GraniteMoeSharedConfig",
        {
            "num_local_experts": EXPERTS,
            "num_experts_per_tok": 2,
            "shared_intermediate_size": 64,
            "intermediate_size": 32,
            "attention_multiplier": 8**-0.5,
        },
        {"expert_feed_forward_length": 32, "expert_shared_count": 2, "expert_weights_norm": True, **MOE},
        interleave=True,
    ),
    "dots1": Family(
        "dots1",
        "Dots1Config",
        {**WIDE, "routed_scaling_factor": 2.5, "norm_topk_prob": True, **SMALL_OPTIONS},
        {"expert_weights_scale": 2.5, "expert_weights_norm": True, **SMALL_MOE},
    ),
    "seed_oss": Family("seed_oss", "SeedOssConfig", {**WIDE, "attention_bias": True}, rename=POST_NORMS),
    "minimax_m2": Family(
        "minimax-m2",
        "MiniMaxM2Config",
        {**WIDE, "num_local_experts": EXPERTS, "num_experts_per_tok": 2, "intermediate_size": 32},
        {"expert_feed_forward_length": 32, **MOE},
    ),
    "internlm2": Family("internlm2", "LlamaConfig", interleave=True),
    "xverse": Family("xverse", "LlamaConfig", interleave=True),
    "baichuan": Family("baichuan", "LlamaConfig", interleave=True),
    "minicpm3": Family(
        "minicpm3",
        "MiniCPM3Config",
        {**LATENT_OPTIONS, "scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256, "tie_word_embeddings": False},
        LATENT,
        head_gain=0.4,
    ),
    "minicpm": Family(
        "minicpm",
        "GraniteConfig",
        {
            "embedding_multiplier": 12.0,
            "logits_scaling": HIDDEN / 256,
            "residual_multiplier": 1.4 / 2**0.5,
            "attention_multiplier": 8**-0.5,
        },
        interleave=True,
        head_gain=0.4,
    ),
    "orion": Family("orion", "StableLmConfig", {"partial_rotary_factor": 1.0}),
    "qwen": Family(
        "qwen",
        "Qwen2Config",
        {"num_key_value_heads": HEADS},
        {"attention.head_count_kv": HEADS, "feed_forward_length": 2 * NEURONS},
        fuse_qkv=True,
    ),
    "llama_relu": Family(
        "llama", "LlamaConfig", {"hidden_act": "relu"}, {"hidden_activation": "relu"}, interleave=True
    ),
    "powerinfer_llama": Family("llama", "LlamaConfig", {"hidden_act": "relu"}, interleave=True, transposed_down=True),
    "powerinfer_falcon": Family(
        "falcon",
        "FalconConfig",
        {
            "new_decoder_architecture": False,
            "multi_query": True,
            "alibi": False,
            "bias": False,
            "ffn_hidden_size": NEURONS,
            "activation": "relu",
        },
        {"attention.head_count_kv": 1},
        transposed_down=True,
    ),
    "powerinfer_bamboo": Family(
        "bamboo", "LlamaConfig", {"hidden_act": "relu"}, interleave=True, transposed_down=True, double_relu=True
    ),
}

"""Further settings of the families, which no fixture has."""

from __future__ import annotations

from typing import Any

from examples import FAMILIES
from families import VOCAB

T5 = {**FAMILIES["t5_1_1"][1], "num_layers": 1}
LLAMA = {**FAMILIES["llama2"][1], "num_hidden_layers": 2}
GEMMA2, GEMMA3 = FAMILIES["gemma2"][1], FAMILIES["gemma3"][1]
GEMMA4 = FAMILIES["gemma4"][1]
T5GEMMA2 = FAMILIES["t5gemma2"][1]
YARN = FAMILIES["llama_yarn"][1]["rope_parameters"]

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    # The settings of released files, but for their sizes.
    "madlad": (
        "T5Config",
        {**T5, "eos_token_id": 2, "pad_token_id": 1},
    ),
    "ul2": ("T5Config", {**T5, "feed_forward_proj": "gated-silu"}),
    "longt5_local": ("LongT5Config", {**FAMILIES["t5"][1], "local_radius": 1}),
    "umt5_scaled": ("UMT5Config", T5),
    **{
        f"{family}_untied": (kind, {**settings, "tie_word_embeddings": False})
        for family in ("bart", "m2m_100", "t5gemma2")
        for kind, settings in [FAMILIES[family]]
    },
    "marian_tied": (
        "MarianConfig",
        {**FAMILIES["marian_separate"][1], "tie_word_embeddings": True},
    ),
    "ernie4_5_without_biases": (
        "Ernie4_5Config",
        {**FAMILIES["ernie4_5"][1], "use_bias": False},
    ),
    "gpt_neox_serial": (
        "GPTNeoXConfig",
        {
            **FAMILIES["gpt_neox"][1],
            "num_hidden_layers": 2,
            "use_parallel_residual": False,
            "attention_bias": False,
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 50.0, "factor": 2.0},
        },
    ),
    "gemma3_others": (
        "Gemma3TextConfig",
        {
            **LLAMA,
            "num_hidden_layers": 3,
            "num_key_value_heads": 4,
            "head_dim": 4,
            "sliding_window": 4,
            "sliding_window_pattern": 3,
            "final_logit_softcapping": 3.0,
            "attention_bias": True,
            "tie_word_embeddings": False,
            "rope_parameters": None,
        },
    ),
    "gemma4_others": (
        "Gemma4TextConfig",
        {
            **GEMMA4,
            "num_hidden_layers": 3,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
            "num_kv_shared_layers": 0,
            "attention_k_eq_v": False,
            "attention_bias": True,
            "hidden_size_per_layer_input": 0,
            "use_double_wide_mlp": False,
            "final_logit_softcapping": None,
            "tie_word_embeddings": False,
            "use_bidirectional_attention": "vision",
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
                "full_attention": {
                    "rope_type": "proportional",
                    "rope_theta": 500.0,
                    "factor": 2.0,
                },
            },
        },
    ),
    "gemma4_experts": (
        "Gemma4TextConfig",
        {
            **GEMMA4,
            "num_hidden_layers": 2,
            "layer_types": ["sliding_attention", "full_attention"],
            "num_kv_shared_layers": 0,
            "hidden_size_per_layer_input": 0,
            "use_double_wide_mlp": False,
            "enable_moe_block": True,
            "num_experts": 4,
            "top_k_experts": 2,
            "moe_intermediate_size": 12,
        },
    ),
    "t5gemma_others": (
        "T5GemmaConfig",
        {
            "vocab_size": VOCAB,
            "tie_word_embeddings": False,
            "encoder": {**GEMMA2, "sliding_window": 2, "num_hidden_layers": 3},
            "decoder": {**GEMMA2, "attention_bias": True, "final_logit_softcapping": None},
        },
    ),
    "t5gemma2_others": (
        "T5Gemma2Config",
        {
            **T5GEMMA2,
            "encoder": {
                **T5GEMMA2["encoder"],
                "text_config": {**GEMMA3, "sliding_window": 4, "num_key_value_heads": 2},
            },
            "decoder": GEMMA3,
        },
    ),
    "gemma3_yarn": (
        "Gemma3TextConfig",
        {
            **FAMILIES["gemma3"][1],
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
                "full_attention": YARN,
            },
        },
    ),
    "gpt_neox_yarn": (
        "GPTNeoXConfig",
        {
            **FAMILIES["gpt_neox"][1],
            "hidden_size": 32,
            "rope_parameters": {**YARN, "partial_rotary_factor": 0.5},
        },
    ),
    "mistral_yarn": (
        "MistralConfig",
        {
            **LLAMA,
            "num_hidden_layers": 1,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "rope_parameters": {**YARN, "truncate": False, "attention_factor": 1.3},
        },
    ),
    "qwen2_yarn": (
        "Qwen2Config",
        {
            **LLAMA,
            "num_hidden_layers": 1,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "rope_parameters": {**YARN, "mscale": 2.0, "mscale_all_dim": 0.5},
        },
    ),
    "qwen3_yarn": (
        "Qwen3Config",
        {**LLAMA, "num_key_value_heads": 2, "head_dim": 8, "rope_parameters": YARN},
    ),
    "qwen2_window": (
        "Qwen2Config",
        {
            **LLAMA,
            "num_key_value_heads": 2,
            "use_sliding_window": True,
            "sliding_window": 4,
            "max_window_layers": 1,
        },
    ),
    "qwen3_biased": (
        "Qwen3Config",
        {**LLAMA, "num_key_value_heads": 1, "attention_bias": True, "head_dim": 6},
    ),
    # ``transformers`` 5.24 divides by zero where it has to make these types itself.
    "exaone4_whole": (
        "Exaone4Config",
        {**FAMILIES["olmo2"][1], "sliding_window": None, "layer_types": ["full_attention"] * 2},
    ),
    "falcon_one_head": (
        "FalconConfig",
        {
            **FAMILIES["falcon"][1],
            "new_decoder_architecture": False,
            "bias": True,
            "tie_word_embeddings": False,
        },
    ),
    "bloom_residual": (
        "BloomConfig",
        {**FAMILIES["bloom"][1], "apply_residual_connection_post_layernorm": True},
    ),
    "llama_dynamic": (
        "LlamaConfig",
        {**LLAMA, "rope_parameters": {"rope_type": "dynamic", "rope_theta": 50.0, "factor": 2.0}},
    ),
    "opt_350m": (
        "OPTConfig",
        {**FAMILIES["opt"][1], "do_layer_norm_before": False, "word_embed_proj_dim": 12},
    ),
    "smollm3_biased": (
        "SmolLM3Config",
        {**FAMILIES["olmo2"][1], "attention_bias": True, "mlp_bias": True},
    ),
    "stablelm_serial": (
        "StableLmConfig",
        {**FAMILIES["stablelm"][1], "use_parallel_residual": False, "use_qkv_bias": False},
    ),
    "falcon_alibi": (
        "FalconConfig",
        {
            **FAMILIES["falcon"][1],
            "hidden_size": 32,
            "num_attention_heads": 16,  # with slopes that bfloat16 rounds
            "num_kv_heads": None,
            "new_decoder_architecture": False,
            "multi_query": False,
            "parallel_attn": False,
            "bias": True,
            "alibi": True,
        },
    ),
    "phi3_long": (
        "Phi3Config",
        {
            **FAMILIES["phi3"][1],
            "hidden_size": 32,
            "sliding_window": 36,  # which only longer texts than in training reach
            "original_max_position_embeddings": 32,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 500.0,
                "partial_rotary_factor": 0.5,
                "short_factor": [1.5, 3.0],
                "long_factor": [4.0, 9.0],
            },
        },
    ),
}

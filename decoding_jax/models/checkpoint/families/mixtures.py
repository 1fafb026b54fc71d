"""Mixtures of experts: Mixtral, OLMoE, Qwen2-MoE and Qwen3-MoE.

Jiang et al. 2024, "Mixtral of Experts"; Muennighoff et al. 2024, "OLMoE: Open Mixture-of-Experts
Language Models"; Yang et al. 2025, "Qwen3 Technical Report".
"""

from __future__ import annotations

from typing import Any

from decoding_jax.models.checkpoint.directory import Settings
from decoding_jax.models.checkpoint.families.llama import everywhere
from decoding_jax.models.checkpoint.family import ATTENTION_BIAS, KEYS, NAMES, Family, Key, without
from decoding_jax.models.checkpoint.position_settings import local_layers

_NAMES = NAMES | {
    "mlp/router": "mlp.gate",
    "mlp/gate_experts": "mlp.experts.{}.gate_proj",
    "mlp/up_experts": "mlp.experts.{}.up_proj",
    "mlp/down_experts": "mlp.experts.{}.down_proj",
}

MIXTRAL = Family(
    "mixtral",
    "MixtralForCausalLM",
    KEYS
    | {
        "num_key_value_heads": Key("num_kv_heads", 8),
        "rms_norm_eps": Key("norm_epsilon", 1e-5),
        "num_local_experts": Key("num_experts", 8),
        "num_experts_per_tok": Key("experts_per_token", 2),
    },
    names=NAMES
    | {
        "mlp/router": "block_sparse_moe.gate",
        "mlp/gate_experts": "block_sparse_moe.experts.{}.w1",
        "mlp/up_experts": "block_sparse_moe.experts.{}.w3",
        "mlp/down_experts": "block_sparse_moe.experts.{}.w2",
    },
    window=everywhere,
)
OLMOE = Family(
    "olmoe",
    "OlmoeForCausalLM",
    without(KEYS, "head_dim")
    | ATTENTION_BIAS
    | {
        "rms_norm_eps": Key("norm_epsilon", 1e-5),
        "clip_qkv": Key("clip_qkv", None),
        "num_experts": Key("num_experts", 64),
        "num_experts_per_tok": Key("experts_per_token", 8),
        "norm_topk_prob": Key("normalised_experts", False),
    },
    {"qk_norm": True, "qk_norm_whole": True},
    _NAMES,
)


def _window(settings: Settings, num_layers: int) -> tuple[Any, list[bool]]:
    if not settings.get("use_sliding_window", bool, False):
        return None, [False] * num_layers
    return everywhere(settings, num_layers, 4096)


QWEN3_MOE = Family(
    "qwen3_moe",
    "Qwen3MoeForCausalLM",
    without(KEYS, "intermediate_size")
    | ATTENTION_BIAS
    | {
        "num_key_value_heads": Key("num_kv_heads", 4),
        "moe_intermediate_size": Key("mlp_dim", 768),
        # transformers 5 writes the other name.
        "num_experts": Key("num_experts", lambda settings: settings.size("num_local_experts", 128)),
        "num_experts_per_tok": Key("experts_per_token", 8),
        "norm_topk_prob": Key("normalised_experts", False),
    },
    {"qk_norm": True},
    _NAMES,
    refused={"decoder_sparse_step": 1, "mlp_only_layers": []},
    window=_window,
)


def _every_other(settings: Settings, num_layers: int) -> tuple[Any, list[bool]]:
    if not settings.get("use_sliding_window", bool, False):
        return None, [False] * num_layers
    below = settings.get("max_window_layers", int, 28)
    return settings.size("sliding_window", 4096), [
        x and i < below for i, x in enumerate(local_layers(num_layers, 2))
    ]


QWEN2_MOE = Family(
    "qwen2_moe",
    "Qwen2MoeForCausalLM",
    without(QWEN3_MOE.keys, "head_dim", "attention_bias")
    | {
        "num_key_value_heads": Key("num_kv_heads", 16),
        "moe_intermediate_size": Key("mlp_dim", 1408),
        "shared_expert_intermediate_size": Key("shared_mlp_dim", 5632),
        "num_experts": Key("num_experts", 60),
        "num_experts_per_tok": Key("experts_per_token", 4),
        "qkv_bias": Key("qkv_bias", True),
    },
    {},
    _NAMES
    | {
        "shared_mlp/gate": "mlp.shared_expert.gate_proj",
        "shared_mlp/up": "mlp.shared_expert.up_proj",
        "shared_mlp/down": "mlp.shared_expert.down_proj",
        "shared_router": "mlp.shared_expert_gate",
    },
    refused=QWEN3_MOE.refused,
    window=_every_other,
)

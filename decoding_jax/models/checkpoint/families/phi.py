"""Phi 1 and 2, and Phi 3 and 4, in texts of the length before that was extended.

Gunasekar et al. 2023, "Textbooks Are All You Need"; Abdin et al. 2024, "Phi-3 Technical Report: A
Highly Capable Language Model Locally on Your Phone"; Abdin et al. 2024, "Phi-4 Technical Report".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from decoding_jax.models.checkpoint.directory import Settings
from decoding_jax.models.checkpoint.families.llama import everywhere
from decoding_jax.models.checkpoint.family import KEYS, NAMES, Family, Key, without
from decoding_jax.models.llama import LlamaConfig

PHI = Family(
    "phi",
    "PhiForCausalLM",
    without(KEYS, "rms_norm_eps")
    | {
        "hidden_act": Key("activation", "gelu_new"),
        "layer_norm_eps": Key("norm_epsilon", 1e-5),
    },
    {
        "norm": "layer",
        "parallel": "one_norm",
        "gated": False,
        **dict.fromkeys(("qkv_bias", "out_bias", "mlp_bias", "logits_bias"), True),
    },
    NAMES
    | {
        "final_norm": "model.final_layernorm",
        "attention/out": "self_attn.dense",
        "mlp/up": "mlp.fc1",
        "mlp/down": "mlp.fc2",
    },
    refused={"qk_layernorm": False},
    rotary=0.5,
)


def _longrope(settings: Settings, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Refuses what transformers takes for ``longrope`` in this family, whatever it is called."""
    scaling = fields["rope_scaling"]
    if scaling is not None and scaling.kind != "longrope":
        raise settings.error("rope_scaling", scaling.kind, "null or longrope")
    if scaling is not None:
        settings.size(_ORIGINAL)  # that of the section is not read
    return {}


_ORIGINAL = "original_max_position_embeddings"


def _longrope_settings(config: LlamaConfig) -> dict[str, Any]:
    scaling = config.rope_scaling
    if scaling is None:
        return {}
    return {
        _ORIGINAL: scaling.original_max_positions,
        "max_position_embeddings": scaling.extended_positions,
    }


PHI3 = Family(
    "phi3",
    "Phi3ForCausalLM",
    KEYS | {"rms_norm_eps": Key("norm_epsilon", 1e-5)},
    names=NAMES
    | dict.fromkeys(("attention/query", "attention/key", "attention/value"), "self_attn.qkv_proj")
    | dict.fromkeys(("mlp/gate", "mlp/up"), "mlp.gate_up_proj"),
    rotary=1.0,
    window=everywhere,
    more=_longrope,
    more_settings=_longrope_settings,
)

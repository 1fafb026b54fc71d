"""OLMo 1, 2 and 3.

Groeneveld et al. 2024, "OLMo: Accelerating the Science of Language Models"; OLMo Team 2025, "2 OLMo
2 Furious"; OLMo Team 2025, "Olmo 3".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from decoding_jax.models.checkpoint.directory import Settings
from decoding_jax.models.checkpoint.family import ATTENTION_BIAS, KEYS, NAMES, Family, Key, without
from decoding_jax.models.checkpoint.position_settings import (
    FULL,
    SLIDING,
    local_layers,
    settings_of_scaling,
    two_ropes_of,
)
from decoding_jax.models.llama import LlamaConfig

_KEYS = KEYS | ATTENTION_BIAS | {"rms_norm_eps": Key("norm_epsilon", 1e-5)}
AFTER = NAMES | {
    "post_attention_norm": "post_attention_layernorm",
    "post_mlp_norm": "post_feedforward_layernorm",
}
"""The names of networks with norms after the parts of a layer."""

OLMO = Family(
    "olmo",
    "OlmoForCausalLM",
    without(_KEYS, "rms_norm_eps") | {"clip_qkv": Key("clip_qkv", None)},
    {"norm": "layer_plain", "norm_epsilon": 1e-5},
)
OLMO2 = Family(
    "olmo2",
    "Olmo2ForCausalLM",
    _KEYS,
    {"norm_place": "after", "qk_norm": True, "qk_norm_whole": True},
    AFTER,
)


def _window(settings: Settings, num_layers: int) -> tuple[Any, list[bool]]:
    window = settings.values.get("sliding_window", 4096)
    return window, local_layers(num_layers, 4)


def _ropes(settings: Settings, fields: Mapping[str, Any]) -> dict[str, Any]:
    return two_ropes_of(settings, 500_000.0, 500_000.0)


def _rope_settings(config: LlamaConfig) -> dict[str, Any]:
    scaling = settings_of_scaling(config.rope_scaling) or {"rope_type": "default"}
    local = {"rope_type": "default", "rope_theta": config.local_rope_theta}
    ropes = {FULL: scaling | {"rope_theta": config.rope_theta}, SLIDING: local}
    return {"rope_parameters": ropes, "rope_scaling": None}


OLMO3 = Family(
    "olmo3",
    "Olmo3ForCausalLM",
    _KEYS,
    OLMO2.fixed,
    AFTER,
    window=_window,
    more=_ropes,
    more_settings=_rope_settings,
)

"""Llama, Mistral, Qwen2, Qwen3 and MiMo."""

from __future__ import annotations

from typing import Any

from decoding_jax.models.checkpoint.directory import Settings
from decoding_jax.models.checkpoint.family import ATTENTION_BIAS, KEYS, MLP_BIAS, Family, Key
from decoding_jax.models.checkpoint.position_settings import FULL, SLIDING

LLAMA = Family("llama", "LlamaForCausalLM", KEYS | ATTENTION_BIAS | MLP_BIAS)


def everywhere(settings: Settings, num_layers: int, absent: Any = None) -> tuple[Any, list[bool]]:
    """A window in all layers, where ``sliding_window`` is stated."""
    window = settings.values.get("sliding_window", absent)
    settings.refuse(layer_types=[FULL if window is None else SLIDING] * num_layers)
    return window, [True] * num_layers


def _mistral(settings: Settings, num_layers: int) -> tuple[Any, list[bool]]:
    # In older files, an absent window means 4,096.
    return everywhere(settings, num_layers, 4096)


def _qwen(settings: Settings, num_layers: int) -> tuple[Any, list[bool]]:
    if not settings.get("use_sliding_window", bool, False):
        return None, [False] * num_layers
    first = settings.get("max_window_layers", int, 28)
    return settings.values.get("sliding_window", 4096), [i >= first for i in range(num_layers)]


MISTRAL = Family("mistral", "MistralForCausalLM", KEYS, window=_mistral)
QWEN2 = Family("qwen2", "Qwen2ForCausalLM", KEYS, {"qkv_bias": True}, window=_qwen)
QWEN3 = Family(
    "qwen3",
    "Qwen3ForCausalLM",
    # An absent size of a head is 128, whatever the width.
    KEYS | ATTENTION_BIAS | {"head_dim": Key("head_dim", 128)},
    {"qk_norm": True},
    window=_qwen,
)
MIMO = Family("mimo", "MiMoForCausalLM", KEYS, {"qkv_bias": True}, window=_qwen)

"""EXAONE 4: norms after each part, and no positions in layers without the window.

LG AI Research 2025, "EXAONE 4.0: Unified Large Language Models Integrating Non-reasoning and
Reasoning Modes".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from decoding_jax.models.checkpoint.directory import Settings
from decoding_jax.models.checkpoint.families.olmo import AFTER
from decoding_jax.models.checkpoint.family import KEYS, Family, Key
from decoding_jax.models.checkpoint.position_settings import (
    local_layers,
    read_window,
    settings_of_rotated_window,
)
from decoding_jax.models.llama import LlamaConfig


def _window(settings: Settings, num_layers: int) -> tuple[Any, list[bool]]:
    window = settings.values.get("sliding_window", 4096)
    if window is None:
        return None, [False] * num_layers
    typed = "layer_types" in settings.values
    period = 1 if typed else settings.size("sliding_window_pattern", 4)
    return window, local_layers(num_layers, period)


def _positions(settings: Settings, fields: Mapping[str, Any]) -> dict[str, Any]:
    window, pattern = read_window(settings, *_window(settings, fields["num_layers"]))
    return {"rotary_pattern": (True,) if window is None else pattern}


def _position_settings(config: LlamaConfig) -> dict[str, Any]:
    if all(config.rotary_pattern) and config.window is None:
        return {"sliding_window": None}
    return settings_of_rotated_window(config)


EXAONE4 = Family(
    "exaone4",
    "Exaone4ForCausalLM",
    KEYS
    | {"num_key_value_heads": Key("num_kv_heads", 32), "rms_norm_eps": Key("norm_epsilon", 1e-5)},
    {"norm_place": "after", "qk_norm": True},
    AFTER,
    window=_window,
    more=_positions,
    more_settings=_position_settings,
)

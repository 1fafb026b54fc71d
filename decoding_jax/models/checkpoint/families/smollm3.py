"""SmolLM3, in which some layers have no positions.

Bakouch et al. 2025, "SmolLM3: smol, multilingual, long-context reasoner"; Kazemnejad et al. 2023,
"The Impact of Positional Encoding on Length Generalization in Transformers".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from decoding_jax.models.checkpoint.directory import Settings
from decoding_jax.models.checkpoint.family import ATTENTION_BIAS, KEYS, MLP_BIAS, Family, Key
from decoding_jax.models.checkpoint.position_settings import local_layers
from decoding_jax.models.llama import LlamaConfig
from decoding_jax.models.view import is_local


def _rotated(settings: Settings, num_layers: int) -> list[bool]:
    """Whether each layer has positions."""
    period = settings.size("no_rope_layer_interval", 4)
    stated = settings.get(_ROTATED, list, None)
    if stated is None:
        return local_layers(num_layers, period)
    if len(stated) < num_layers or any(x not in (0, 1) for x in stated):
        raise settings.error(_ROTATED, stated, f"0 or 1 for each of {num_layers} layers")
    return [bool(x) for x in stated[:num_layers]]


_ROTATED = "no_rope_layers"  # the name notwithstanding, 1 is a layer with positions


def _window(settings: Settings, num_layers: int) -> tuple[Any, list[bool]]:
    window = settings.values.get("sliding_window")
    used = settings.get("use_sliding_window", bool, False)
    return window if used else None, [not x for x in _rotated(settings, num_layers)]


def _positions(settings: Settings, fields: Mapping[str, Any]) -> dict[str, Any]:
    return {"rotary_pattern": tuple(_rotated(settings, fields["num_layers"]))}


def _position_settings(config: LlamaConfig) -> dict[str, Any]:
    pattern, count = config.rotary_pattern, config.num_layers
    return {_ROTATED: [int(is_local(pattern, i)) for i in range(count)]}


SMOLLM3 = Family(
    "smollm3",
    "SmolLM3ForCausalLM",
    KEYS
    | ATTENTION_BIAS
    | MLP_BIAS
    | {
        "num_key_value_heads": Key("num_kv_heads", 4),
        "tie_word_embeddings": Key("logits_via_embedding", True),
    },
    theta=2_000_000.0,
    window=_window,
    more=_positions,
    more_settings=_position_settings,
)

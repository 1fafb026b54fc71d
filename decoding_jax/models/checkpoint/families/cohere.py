"""Cohere's Command R and R7B: parallel parts under one norm, and pairs of neighbours rotated.

In the second one (``cohere2``), layers without the window have no positions. Cohere 2025, "Command
A: An Enterprise-Ready Large Language Model".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from decoding_jax.models.checkpoint.directory import Settings
from decoding_jax.models.checkpoint.family import ATTENTION_BIAS, KEYS, Family, Key, without
from decoding_jax.models.checkpoint.position_settings import (
    local_layers,
    read_window,
    settings_of_rotated_window,
)

_KEYS = {
    **without(KEYS, "rms_norm_eps"),
    **ATTENTION_BIAS,
    "layer_norm_eps": Key("norm_epsilon", 1e-5),
    "logit_scale": Key("logit_scale", 0.0625),
    "tie_word_embeddings": Key("logits_via_embedding", True),
}
_FIXED = {"norm": "layer_unbiased", "parallel": "one_norm", "rotary_interleaved": True}

COHERE = Family(
    "cohere",
    "CohereForCausalLM",
    _KEYS,
    _FIXED,
    refused={"use_qk_norm": False},
    theta=500_000.0,
)


def _window(settings: Settings, num_layers: int) -> tuple[Any, list[bool]]:
    period = settings.size("sliding_window_pattern", 4)
    return settings.size("sliding_window", 4096), local_layers(num_layers, period)


def _positions(settings: Settings, fields: Mapping[str, Any]) -> dict[str, Any]:
    window = _window(settings, fields["num_layers"])
    return {"rotary_pattern": read_window(settings, *window)[1]}


COHERE2 = Family(
    "cohere2",
    "Cohere2ForCausalLM",
    without(_KEYS, "head_dim"),
    _FIXED,
    window=_window,
    more=_positions,
    more_settings=settings_of_rotated_window,
)

"""Llama, Mistral, Ministral, Qwen2, Qwen3 and MiMo.

In Ministral 3, queries grow with their positions (Meta 2025, "Llama 4"). Of a Mistral Small or a
Ministral that reads images (``mistral3``), the text network is read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from decoding_jax.models.checkpoint.directory import Settings, Tensors
from decoding_jax.models.checkpoint.families.gemma import IMAGES
from decoding_jax.models.checkpoint.family import ATTENTION_BIAS, KEYS, MLP_BIAS, Family, Key
from decoding_jax.models.checkpoint.params import ONE_DEVICE, Layout
from decoding_jax.models.checkpoint.position_settings import FULL, SLIDING
from decoding_jax.models.llama import Llama

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


def _by_type(settings: Settings, num_layers: int) -> tuple[Any, list[bool]]:
    return settings.values.get("sliding_window", 4096), [True] * num_layers


def _growing(settings: Settings, fields: Mapping[str, Any]) -> dict[str, Any]:
    scaling = fields["rope_scaling"]
    if scaling is None or scaling.kind != "yarn":
        raise settings.error("rope_type", None if scaling is None else scaling.kind, "yarn")
    return {}


_EIGHT = {"num_key_value_heads": Key("num_kv_heads", 8)}
MISTRAL = Family("mistral", "MistralForCausalLM", KEYS | _EIGHT, window=_mistral)
MINISTRAL = Family("ministral", "MinistralForCausalLM", KEYS | _EIGHT, window=_by_type)
MINISTRAL3 = Family(
    "ministral3",
    "Ministral3ForCausalLM",
    KEYS | _EIGHT | {"head_dim": Key("head_dim", 128), "rms_norm_eps": Key("norm_epsilon", 1e-5)},
    growing=True,
    window=everywhere,
    more=_growing,
)


class _WithImages(Family):
    def read(
        self, settings: Settings, tensors: Tensors, dtype: str, layout: Layout = ONE_DEVICE
    ) -> Llama:
        """See ``Family.read``; the text network is of the family that its settings name."""
        kinds = {family.model_type: family for family in (MISTRAL, MINISTRAL3)}
        text = settings.section("text_config")
        kind = text.one_of("model_type", {name: name for name in kinds}, "mistral")
        tied = settings.get("tie_word_embeddings", bool, True)  # that of the text is not read
        text = Settings(settings.path, {**text.values, "tie_word_embeddings": tied})
        return dataclasses.replace(kinds[kind], **IMAGES).read(text, tensors, dtype, layout)


MISTRAL3 = _WithImages("mistral3", "Mistral3ForConditionalGeneration", KEYS)
_QWEN = KEYS | {"num_key_value_heads": Key("num_kv_heads", 32)}
QWEN2 = Family("qwen2", "Qwen2ForCausalLM", _QWEN, {"qkv_bias": True}, window=_qwen)
QWEN3 = Family(
    "qwen3",
    "Qwen3ForCausalLM",
    # An absent size of a head is 128, whatever the width.
    _QWEN | ATTENTION_BIAS | {"head_dim": Key("head_dim", 128)},
    {"qk_norm": True},
    window=_qwen,
)
MIMO = Family("mimo", "MiMoForCausalLM", KEYS, {"qkv_bias": True}, window=_qwen)

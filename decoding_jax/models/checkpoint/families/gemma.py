"""Gemma 1 and 2, and the text networks of Gemma 3.

The larger Gemma 3 read images too (``model_type`` ``gemma3``). Of those, the text network is read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from decoding_jax.models.checkpoint.directory import ACTIVATIONS_BACK, Settings
from decoding_jax.models.checkpoint.family import ATTENTION_BIAS, KEYS, NAMES, Family, Key, without
from decoding_jax.models.checkpoint.position_settings import (
    layer_types,
    local_layers,
    two_ropes_of,
)
from decoding_jax.models.gemma import Gemma, GemmaConfig
from decoding_jax.models.llama import LlamaConfig

NORMS = {
    "pre_attention_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "pre_mlp_norm": "pre_feedforward_layernorm",
    "post_mlp_norm": "post_feedforward_layernorm",
}
"""The names of the norms of a layer in Gemma 2 and 3."""


IMAGES: Any = {
    "others": r"(model\.)?(vision_tower|multi_modal_projector)\..*",
    # The beginnings of names before transformers 4.52 and since then.
    "renamed": {
        r"language_model\.lm_head\.": "lm_head.",
        r"(language_model\.model|model\.language_model|language_model)\.": "model.",
    },
}
"""What the files of networks have that read images, beside a text network."""


def cap(name: str, absent: float | None) -> Key:
    """A bound: None where the setting is null, and ``absent`` where there is no setting."""
    field = {"attn_logit_softcapping": "attention_soft_cap"}.get(name, "logit_soft_cap")
    return Key(field, lambda settings: None if name in settings.values else absent)


def _local(period: int | None) -> Callable[[Settings, int], tuple[Any, list[bool]]]:
    """All layers but each last one of a period have the window."""

    def window(settings: Settings, num_layers: int) -> tuple[Any, list[bool]]:
        size = period or settings.size("sliding_window_pattern", 6)
        return settings.size("sliding_window", 4096), local_layers(num_layers, size)

    return window


def _tanh(settings: Settings, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The released files of Gemma 1 say ``gelu`` and mean that by tanh, as in transformers."""
    return {"activation": fields["activation"].replace("gelu_exact", "gelu")}


def _layers(config: LlamaConfig) -> dict[str, Any]:
    """The settings of Gemma 2 and 3 that have other values where others have null."""
    scalar = config.query_scalar or config.head_dim
    return {
        "hidden_activation": ACTIVATIONS_BACK[config.activation].replace("_new", "_pytorch_tanh"),
        "query_pre_attn_scalar": int(scalar) if int(scalar) == scalar else scalar,
        "sliding_window": config.max_positions if config.window is None else config.window,
        "layer_types": layer_types(config.window_pattern, config.num_layers),
    }


def _ropes(settings: Settings, fields: Mapping[str, Any]) -> dict[str, Any]:
    return two_ropes_of(settings, 1_000_000.0, 10_000.0, 131_072)


_KEYS = {
    **without(KEYS, "hidden_act"),
    **ATTENTION_BIAS,
    "head_dim": Key("head_dim", 256),
    "num_attention_heads": Key("num_heads", 8),
    "num_key_value_heads": Key("num_kv_heads", 4),
    "hidden_activation": Key("activation", "gelu_pytorch_tanh"),
    "query_pre_attn_scalar": Key("query_scalar", 256.0),
    "tie_word_embeddings": Key("logits_via_embedding", True),
}

GEMMA = Family(
    "gemma",
    "GemmaForCausalLM",
    KEYS
    | ATTENTION_BIAS
    | {
        "num_key_value_heads": Key("num_kv_heads", 16),
        "head_dim": Key("head_dim", 256),
        "hidden_act": Key("activation", "gelu_pytorch_tanh"),
        "tie_word_embeddings": Key("logits_via_embedding", True),
    },
    {"norm_place": "before"},
    refused={"use_bidirectional_attention": False, "hidden_activation": "gelu_pytorch_tanh"},
    positions=8192,
    more=_tanh,
    model=Gemma,
    config=GemmaConfig,
)
GEMMA2 = dataclasses.replace(
    GEMMA,
    model_type="gemma2",
    architecture="Gemma2ForCausalLM",
    keys={
        **_KEYS,
        "vocab_size": Key("vocab_size", 256_000),
        "attn_logit_softcapping": cap("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": cap("final_logit_softcapping", 30.0),
    },
    fixed={},
    names=NAMES | NORMS,
    refused={"use_bidirectional_attention": False},
    window=_local(2),
    more=lambda settings, fields: {},
    more_settings=_layers,
)
GEMMA3 = dataclasses.replace(
    GEMMA2,
    model_type="gemma3_text",
    architecture="Gemma3ForCausalLM",
    keys={
        **_KEYS,
        "vocab_size": Key("vocab_size", 262_208),
        "final_logit_softcapping": cap("final_logit_softcapping", None),
    },
    fixed={"qk_norm": True},
    # transformers reads the cap of the attention and does not use it.
    refused={"use_bidirectional_attention": False, "attn_logit_softcapping": None},
    window=_local(None),
    more=_ropes,
    more_settings=lambda config: {
        **_layers(config),
        "rope_local_base_freq": config.local_rope_theta,
    },
    **IMAGES,
)
GEMMA3_WITH_IMAGES = dataclasses.replace(GEMMA3, model_type="gemma3", section="text_config")

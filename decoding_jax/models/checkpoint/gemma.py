"""Gemma 2 and the text networks of Gemma 3 in the Hugging Face layout.

The larger Gemma 3 read images too (``model_type`` ``gemma3``). Of those, the text network is read.
"""

from __future__ import annotations

from typing import Any

from decoding_jax.models.checkpoint import llama
from decoding_jax.models.checkpoint.directory import (
    ACTIVATIONS,
    ACTIVATIONS_BACK,
    Settings,
    Tensors,
)
from decoding_jax.models.checkpoint.llama import settings_of_shape
from decoding_jax.models.checkpoint.params import ONE_DEVICE, Layout, Weight, read_model
from decoding_jax.models.checkpoint.position_settings import (
    FULL,
    SLIDING,
    layer_types,
    max_positions_of,
    read_window,
    rope_of,
    scaling_of,
)
from decoding_jax.models.gemma import Gemma, GemmaConfig
from decoding_jax.models.positions import RopeScaling

NORMS = {
    "pre_attention_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "pre_mlp_norm": "pre_feedforward_layernorm",
    "post_mlp_norm": "post_feedforward_layernorm",
}


# The networks for images, beside a text network.
IMAGES = r"(model\.)?(vision_tower|multi_modal_projector)\..*"
# What the names of the text network begin with in networks that read images, in versions of
# transformers before 4.52 and since then.
RENAMED = {
    r"language_model\.lm_head\.": "lm_head.",
    r"(language_model\.model|model\.language_model|language_model)\.": "model.",
}


def table(config: GemmaConfig) -> dict[str, Weight]:
    """The tensor of every parameter."""
    return llama.table(config, NORMS)


def two_ropes_of(settings: Settings) -> tuple[float, RopeScaling | None, float]:
    """The base of the rotary frequencies, their scaling, and the base of the local ones."""
    ropes = settings.section("rope_parameters")
    for key in ropes.values:
        if key not in (SLIDING, FULL):
            raise settings.error("rope_parameters", key, f"{SLIDING} and {FULL}")
    sliding, scaling = ropes.section(SLIDING), settings.section("rope_scaling")
    full = Settings(settings.path, {**ropes.section(FULL).values, **scaling.values})
    for rope in (sliding, full):
        rope.refuse(partial_rotary_factor=1.0)
    sliding.refuse(rope_type="default")
    base = settings.get("rope_theta", float, 1_000_000.0)
    local_base = settings.get("rope_local_base_freq", float, 10_000.0)
    return (
        full.get("rope_theta", float, base),
        scaling_of(full, settings),
        sliding.get("rope_theta", float, local_base),
    )


def soft_cap(settings: Settings, key: str, absent: float | None) -> float | None:
    """A bound: None where the setting is null, and ``absent`` where there is no setting."""
    return settings.get(key, float, absent if key not in settings.values else None)


def shape_of(settings: Settings, dtype: str, *, third: bool) -> dict[str, Any]:
    """The values of a ``GemmaConfig``. Absent settings have the values of the smallest networks.

    Args:
      settings: the settings.
      dtype: the dtype of activations and of the cache.
      third: whether the network has the layers of Gemma 3.
    """
    settings.refuse(use_bidirectional_attention=False)
    if third and settings.values.get("attn_logit_softcapping") is not None:
        # transformers reads this setting of the family and does not use it.
        raise settings.error(
            "attn_logit_softcapping", settings.values["attn_logit_softcapping"], "null only"
        )
    num_layers = settings.size("num_hidden_layers")
    period = settings.size("sliding_window_pattern", 6) if third else 2
    window, pattern = read_window(
        settings,
        settings.size("sliding_window", 4096),
        [(i + 1) % period != 0 for i in range(num_layers)],
    )
    theta, scaling, local_theta = two_ropes_of(settings) if third else (*rope_of(settings), None)
    bias = settings.get("attention_bias", bool, False)
    return {
        "vocab_size": settings.size("vocab_size", 262_208 if third else 256_000),
        "emb_dim": settings.size("hidden_size"),
        "num_heads": settings.size("num_attention_heads", 8),
        "num_kv_heads": settings.size("num_key_value_heads", 4),
        "head_dim": settings.size("head_dim", 256),
        "mlp_dim": settings.size("intermediate_size"),
        "num_layers": num_layers,
        "max_positions": max_positions_of(settings, scaling, 131_072 if third else 8192),
        "rope_theta": theta,
        "rope_scaling": scaling,
        "local_rope_theta": local_theta,
        "activation": settings.one_of("hidden_activation", ACTIVATIONS, "gelu_pytorch_tanh"),
        "norm_epsilon": settings.get("rms_norm_eps", float, 1e-6),
        "qkv_bias": bias,
        "out_bias": bias,
        "qk_norm": third,
        "window": window,
        "window_pattern": pattern,
        "query_scalar": settings.get("query_pre_attn_scalar", float, 256.0),
        "attention_soft_cap": None if third else soft_cap(settings, "attn_logit_softcapping", 50.0),
        "logit_soft_cap": soft_cap(settings, "final_logit_softcapping", None if third else 30.0),
        "dtype": dtype,
    }


def read(settings: Settings, tensors: Tensors, dtype: str, layout: Layout = ONE_DEVICE) -> Gemma:
    """Reads the model of a directory."""
    third, ignored = settings.get("model_type", str) != "gemma2", llama.IGNORED
    if third:
        ignored = f"{ignored}|{IMAGES}"
    if settings.values["model_type"] == "gemma3":
        settings = settings.section("text_config")
    tensors.rename(RENAMED if third else {}, llama.BASE, f"{llama.HEADS}|{IMAGES}")
    tied = settings.get("tie_word_embeddings", bool, True)
    config = GemmaConfig(
        **shape_of(settings, dtype, third=third),
        logits_via_embedding=tied and tensors.tie(llama.EMBEDDING, "lm_head.weight"),
    )
    model = read_model(Gemma, config, table(config), tensors, layout)
    tensors.check_all_used(ignored)
    return model


def settings_of(config: GemmaConfig) -> dict[str, Any]:
    """The contents of ``config.json`` for a network.

    Raises:
      ValueError: as ``settings_of_layers``.
    """
    third = config.qk_norm
    return {
        "architectures": ["Gemma3ForCausalLM" if third else "Gemma2ForCausalLM"],
        "model_type": "gemma3_text" if third else "gemma2",
        **settings_of_layers(config),
    }


def settings_of_layers(config: GemmaConfig) -> dict[str, Any]:
    """The settings of a network's layers.

    Raises:
      ValueError: for settings that neither Gemma 2 nor Gemma 3 has.
    """
    third = config.qk_norm
    if config.qkv_bias != config.out_bias or config.mlp_bias:
        raise ValueError(
            "qkv_bias, out_bias, mlp_bias: expected qkv_bias = out_bias and no mlp_bias, got"
            f" {config.qkv_bias}, {config.out_bias}, {config.mlp_bias}"
        )
    if third != (config.local_rope_theta is not None):
        raise ValueError(
            "local_rope_theta, qk_norm: expected both (Gemma 3) or neither (Gemma 2), got"
            f" {config.local_rope_theta} and {config.qk_norm}"
        )
    if third and config.attention_soft_cap is not None:
        raise ValueError(
            f"attention_soft_cap: expected None with qk_norm, got {config.attention_soft_cap}"
        )
    scalar = config.head_dim if config.query_scalar is None else config.query_scalar
    return {
        **settings_of_shape(config),
        **({"rope_local_base_freq": config.local_rope_theta} if third else {}),
        "hidden_activation": ACTIVATIONS_BACK[config.activation].replace("_new", "_pytorch_tanh"),
        "attention_bias": config.qkv_bias,
        "query_pre_attn_scalar": int(scalar) if int(scalar) == scalar else scalar,
        "sliding_window": config.max_positions if config.window is None else config.window,
        "layer_types": layer_types(config.window_pattern, config.num_layers),
        "attn_logit_softcapping": config.attention_soft_cap,
        "final_logit_softcapping": config.logit_soft_cap,
    }

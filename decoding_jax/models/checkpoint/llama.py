"""Llama, Mistral, Qwen2, Qwen3 and MiMo in the Hugging Face layout."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from decoding_jax.models.checkpoint.directory import (
    ACTIVATIONS,
    ACTIVATIONS_BACK,
    Settings,
    Tensors,
)
from decoding_jax.models.checkpoint.params import ONE_DEVICE, Layout, Weight, read_model
from decoding_jax.models.checkpoint.position_settings import (
    FULL,
    SLIDING,
    layer_types,
    max_positions_of,
    read_window,
    rope_of,
    settings_of_scaling,
)
from decoding_jax.models.llama import Llama, LlamaConfig

# Older files contain the rotary frequencies.
IGNORED = r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq"


BASE, HEADS, EMBEDDING = "model.", r"lm_head\..*", "model.embed_tokens.weight"
"""What the names of a network begin with, those of its head, and the table of embeddings."""

BLOCKS = "num_nextn_predict_layers"
"""The setting for the number of blocks of multi-token prediction."""

NORMS = {"pre_attention_norm": "input_layernorm", "pre_mlp_norm": "post_attention_layernorm"}
"""The names of the norms of a layer, here and in the files."""


def table(config: LlamaConfig, norms: Mapping[str, str] = NORMS) -> dict[str, Weight]:
    """The tensor of every parameter."""
    out = {
        "token_embedder/embedding": Weight("model.embed_tokens.weight"),
        "final_norm/scale": Weight("model.norm.weight"),
    }
    if not config.logits_via_embedding:
        out["logits_dense/kernel"] = Weight("lm_head.weight", True)
    for i in range(config.num_layers):
        out |= layer_table(config, f"layers_{i}", f"model.layers.{i}", norms)
    return out


def layer_table(
    config: LlamaConfig, layer: str, tensor: str, norms: Mapping[str, str]
) -> dict[str, Weight]:
    """The tensors of one layer, whose names begin with ``tensor``."""
    projections = {
        "attention/query": ("self_attn.q_proj", config.qkv_bias),
        "attention/key": ("self_attn.k_proj", config.qkv_bias),
        "attention/value": ("self_attn.v_proj", config.qkv_bias),
        "attention/out": ("self_attn.o_proj", config.out_bias),
        "mlp/gate": ("mlp.gate_proj", config.mlp_bias),
        "mlp/up": ("mlp.up_proj", config.mlp_bias),
        "mlp/down": ("mlp.down_proj", config.mlp_bias),
    }
    out = {}
    for ours, theirs in norms.items():
        out[f"{layer}/{ours}/scale"] = Weight(f"{tensor}.{theirs}.weight")
    if config.qk_norm:
        out[f"{layer}/attention/query_norm/scale"] = Weight(f"{tensor}.self_attn.q_norm.weight")
        out[f"{layer}/attention/key_norm/scale"] = Weight(f"{tensor}.self_attn.k_norm.weight")
    for ours, (name, bias) in projections.items():
        out[f"{layer}/{ours}/kernel"] = Weight(f"{tensor}.{name}.weight", True)
        if bias:
            out[f"{layer}/{ours}/bias"] = Weight(f"{tensor}.{name}.bias")
    return out


def window_of(
    settings: Settings, family: str, num_layers: int, max_positions: int
) -> tuple[int | None, tuple[bool, ...]]:
    """The window of a network, and which of its layers have it."""
    window, first = None, 0
    if family == "mistral":
        # In older files of this family, an absent window means 4,096.
        window = settings.values.get("sliding_window", 4096)
        settings.refuse(layer_types=[FULL if window is None else SLIDING] * num_layers)
    if family in ("qwen2", "qwen3", "mimo") and settings.get("use_sliding_window", bool, False):
        window = settings.values.get("sliding_window", 4096)
        first = settings.get("max_window_layers", int, 28)
    window, pattern = read_window(settings, window, [i >= first for i in range(num_layers)])
    if window is None or window >= max_positions or not any(pattern):
        return None, (True,)
    return window, pattern


def prediction_blocks(settings: Settings) -> list[tuple[str, str]]:
    """The names that the tensors of blocks of multi-token prediction begin with.

    Returns:
      For each block, the one of DeepSeek-V3, after the layers of the network, and that of MiMo.
    """
    first, count = settings.size("num_hidden_layers"), settings.get(BLOCKS, int, 0)
    return [(f"model.layers.{first + k}", f"model.mtp_layers.{k}") for k in range(count)]


def read(settings: Settings, tensors: Tensors, dtype: str, layout: Layout = ONE_DEVICE) -> Llama:
    """Reads the model of a directory, without blocks of multi-token prediction."""
    config = read_config(settings, dtype)
    tensors.rename({}, BASE, HEADS)
    tied = config.logits_via_embedding and tensors.tie(EMBEDDING, "lm_head.weight")
    config = dataclasses.replace(config, logits_via_embedding=tied)
    model = read_model(Llama, config, table(config), tensors, layout)
    blocks = [rf"{re.escape(name)}\..*" for names in prediction_blocks(settings) for name in names]
    tensors.check_all_used("|".join([IGNORED, *blocks]))
    return model


def read_config(settings: Settings, dtype: str) -> LlamaConfig:
    """The shape of the network that ``config.json`` describes.

    Raises:
      CheckpointError: for a setting that is not supported.
    """
    family = settings.get("model_type", str)
    settings.refuse(partial_rotary_factor=1.0)
    heads, width = settings.size("num_attention_heads"), settings.size("hidden_size")
    num_layers = settings.size("num_hidden_layers")
    theta, scaling = rope_of(settings)
    max_positions = max_positions_of(settings, scaling)
    window, pattern = window_of(settings, family, num_layers, max_positions)
    bias = family in ("llama", "qwen3") and settings.get("attention_bias", bool, False)
    return LlamaConfig(
        vocab_size=settings.size("vocab_size"),
        emb_dim=width,
        num_heads=heads,
        num_kv_heads=settings.size("num_key_value_heads", heads),
        # An absent size is 128 in Qwen3, whatever the width.
        head_dim=settings.size("head_dim", 128 if family == "qwen3" else width // heads),
        mlp_dim=settings.size("intermediate_size"),
        num_layers=num_layers,
        max_positions=max_positions,
        rope_theta=theta,
        rope_scaling=scaling,
        activation=settings.one_of("hidden_act", ACTIVATIONS, "silu"),
        norm_epsilon=settings.get("rms_norm_eps", float, 1e-6),
        qkv_bias=bias or family in ("qwen2", "mimo"),
        out_bias=bias,
        mlp_bias=family == "llama" and settings.get("mlp_bias", bool, False),
        qk_norm=family == "qwen3",
        window=window,
        window_pattern=pattern,
        logits_via_embedding=settings.get("tie_word_embeddings", bool, False),
        dtype=dtype,
    )


def settings_of(config: LlamaConfig) -> dict[str, Any]:
    """The contents of ``config.json`` for a network.

    Raises:
      ValueError: for a combination of biases that no supported family has.
    """
    family = _family_of(config)
    return {
        "architectures": [f"{family.capitalize()}ForCausalLM"],
        "model_type": family,
        **settings_of_shape(config),
        "hidden_act": ACTIVATIONS_BACK[config.activation],
        **({"attention_bias": config.qkv_bias} if family in ("llama", "qwen3") else {}),
        **({"mlp_bias": config.mlp_bias} if family == "llama" else {}),
        **_settings_of_window(config, family),
    }


def settings_of_shape(config: LlamaConfig) -> dict[str, Any]:
    """The settings that have one name in all families with these layers."""
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.emb_dim,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.mlp_dim,
        "num_hidden_layers": config.num_layers,
        "max_position_embeddings": config.max_positions,
        "rope_theta": config.rope_theta,
        "rope_scaling": settings_of_scaling(config.rope_scaling),
        "rms_norm_eps": config.norm_epsilon,
        "tie_word_embeddings": config.logits_via_embedding,
        "bos_token_id": None,
        "eos_token_id": None,
    }


def _settings_of_window(config: LlamaConfig, family: str) -> dict[str, Any]:
    if family == "mistral" or config.window is None:
        return {"sliding_window": config.window}
    return {
        "use_sliding_window": True,
        "sliding_window": config.window,
        "layer_types": layer_types(config.window_pattern, config.num_layers),
    }


def _family_of(config: LlamaConfig) -> str:
    """The ``model_type`` of the family that has a network's biases, norms and window."""
    alone = config.qkv_bias and not config.out_bias
    if config.qk_norm and (config.mlp_bias or config.qkv_bias != config.out_bias):
        expected = "qkv_bias = out_bias and no mlp_bias with qk_norm"
    elif config.qkv_bias != config.out_bias and (not alone or config.mlp_bias):
        expected = "qkv_bias = out_bias, or qkv_bias alone"
    elif config.qk_norm or alone or config.window is None:
        return "qwen3" if config.qk_norm else "qwen2" if alone else "llama"
    elif config.qkv_bias or config.mlp_bias or not all(config.window_pattern):
        raise ValueError(
            "window: expected one in all layers without biases, or the biases or norms of Qwen, in"
            f" this layout, got {config.window} with the pattern {config.window_pattern}"
        )
    else:
        return "mistral"
    raise ValueError(
        f"qkv_bias, out_bias, mlp_bias: expected {expected} in this layout, got"
        f" {config.qkv_bias}, {config.out_bias}, {config.mlp_bias}"
    )

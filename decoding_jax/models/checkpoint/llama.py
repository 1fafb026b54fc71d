"""What other families and the heads of drafters share with Llama: its tensors and its settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from decoding_jax.models.checkpoint.params import Weight
from decoding_jax.models.checkpoint.position_settings import settings_of_scaling
from decoding_jax.models.llama import LlamaConfig

BASE, HEADS, EMBEDDING = "model.", r"lm_head\..*", "model.embed_tokens.weight"
"""What the names of a network begin with, those of its head, and the table of embeddings."""

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

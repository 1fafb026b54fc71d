"""GPT-NeoX and Pythia in the Hugging Face layout."""

from __future__ import annotations

import math
from typing import Any

from decoding_jax.models.checkpoint.directory import (
    ACTIVATIONS,
    ACTIVATIONS_BACK,
    Settings,
    Tensors,
)
from decoding_jax.models.checkpoint.params import ONE_DEVICE, Layout, Weight, read_model
from decoding_jax.models.checkpoint.position_settings import (
    max_positions_of,
    scaling_of,
    settings_of_scaling,
)
from decoding_jax.models.gpt_neox import GPTNeoX, GPTNeoXConfig

# Older files contain the causal mask and the rotary frequencies.
IGNORED = r"gpt_neox\.layers\.\d+\.attention\.((masked_)?bias|rotary_emb\.inv_freq)"


def table(config: GPTNeoXConfig) -> dict[str, Weight]:
    """The tensor of every parameter."""
    out = {
        "token_embedder/embedding": Weight("gpt_neox.embed_in.weight"),
        "final_norm/scale": Weight("gpt_neox.final_layer_norm.weight"),
        "final_norm/bias": Weight("gpt_neox.final_layer_norm.bias"),
    }
    if not config.logits_via_embedding:
        out["logits_dense/kernel"] = Weight("embed_out.weight", True)
    names = {
        "pre_attention_norm": "input_layernorm",
        "attention/qkv": "attention.query_key_value",
        "attention/out": "attention.dense",
        "pre_mlp_norm": "post_attention_layernorm",
        "mlp/wi": "mlp.dense_h_to_4h",
        "mlp/wo": "mlp.dense_4h_to_h",
    }
    for i in range(config.num_layers):
        for ours, theirs in names.items():
            parameter, tensor = f"layers_{i}/{ours}", f"gpt_neox.layers.{i}.{theirs}"
            kind = "scale" if ours.endswith("norm") else "kernel"
            out[f"{parameter}/{kind}"] = Weight(f"{tensor}.weight", kind == "kernel")
            if config.attention_bias or not ours.startswith("attention"):
                out[f"{parameter}/bias"] = Weight(f"{tensor}.bias")
    return out


def read(settings: Settings, tensors: Tensors, dtype: str, layout: Layout = ONE_DEVICE) -> GPTNeoX:
    """Reads the model of a directory."""
    rope = settings.section("rope_scaling", "rope_parameters")
    width, heads = settings.size("hidden_size"), settings.size("num_attention_heads")
    rotated = rope.get("partial_rotary_factor", float, settings.get("rotary_pct", float, 0.25))
    base = settings.get("rope_theta", float, settings.get("rotary_emb_base", float, 10_000.0))
    scaling = scaling_of(rope, settings)
    tied = settings.get("tie_word_embeddings", bool, False)
    tensors.rename({}, "gpt_neox.", r"embed_out\..*")
    config = GPTNeoXConfig(
        vocab_size=settings.size("vocab_size"),
        emb_dim=width,
        num_heads=heads,
        mlp_dim=settings.size("intermediate_size"),
        num_layers=settings.size("num_hidden_layers"),
        max_positions=max_positions_of(settings, scaling),
        rotary_dim=int(width // heads * rotated),
        rope_theta=rope.get("rope_theta", float, base),
        rope_scaling=scaling,
        parallel_residual=settings.get("use_parallel_residual", bool, True),
        attention_bias=settings.get("attention_bias", bool, True),
        activation=settings.one_of("hidden_act", ACTIVATIONS, "gelu"),
        layer_norm_epsilon=settings.get("layer_norm_eps", float, 1e-5),
        logits_via_embedding=tied and tensors.tie("gpt_neox.embed_in.weight", "embed_out.weight"),
        dtype=dtype,
    )
    model = read_model(GPTNeoX, config, table(config), tensors, layout)
    tensors.check_all_used(IGNORED)
    return model


def settings_of(config: GPTNeoXConfig) -> dict[str, Any]:
    """The contents of ``config.json`` for a network."""
    rotated = config.rotary_dim / config.head_dim
    if int(config.head_dim * rotated) < config.rotary_dim:  # a fraction that is rounded down
        rotated = math.nextafter(rotated, 1)
    return {
        "architectures": ["GPTNeoXForCausalLM"],
        "model_type": "gpt_neox",
        "vocab_size": config.vocab_size,
        "hidden_size": config.emb_dim,
        "num_attention_heads": config.num_heads,
        "intermediate_size": config.mlp_dim,
        "num_hidden_layers": config.num_layers,
        "max_position_embeddings": config.max_positions,
        "rotary_pct": rotated,
        "rotary_emb_base": config.rope_theta,
        "rope_scaling": settings_of_scaling(config.rope_scaling),
        "use_parallel_residual": config.parallel_residual,
        "attention_bias": config.attention_bias,
        "hidden_act": ACTIVATIONS_BACK[config.activation],
        "layer_norm_eps": config.layer_norm_epsilon,
        "tie_word_embeddings": config.logits_via_embedding,
        "bos_token_id": None,
        "eos_token_id": None,
    }

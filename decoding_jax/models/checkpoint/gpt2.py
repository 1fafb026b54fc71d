"""GPT-2 in the Hugging Face layout, whose matrices are stored as ``[inputs, outputs]``."""

from __future__ import annotations

from typing import Any

from decoding_jax.models.checkpoint.directory import (
    ACTIVATIONS,
    ACTIVATIONS_BACK,
    Settings,
    Tensors,
)
from decoding_jax.models.checkpoint.params import ONE_DEVICE, Layout, Weight, read_model
from decoding_jax.models.gpt2 import GPT2, GPT2Config

# Older files contain the causal mask.
IGNORED = r"transformer\.h\.\d+\.attn\.(masked_)?bias"
BASE = "transformer."


def table(config: GPT2Config) -> dict[str, Weight]:
    """The tensor of every parameter."""
    out = {
        "token_embedder/embedding": Weight(f"{BASE}wte.weight"),
        "position_embedder/embedding": Weight(f"{BASE}wpe.weight"),
        "final_norm/scale": Weight(f"{BASE}ln_f.weight"),
        "final_norm/bias": Weight(f"{BASE}ln_f.bias"),
    }
    if not config.logits_via_embedding:
        out["logits_dense/kernel"] = Weight("lm_head.weight", True)
    names = {
        "pre_attention_norm": ("ln_1", "scale"),
        "attention/qkv": ("attn.c_attn", "kernel"),
        "attention/out": ("attn.c_proj", "kernel"),
        "pre_mlp_norm": ("ln_2", "scale"),
        "mlp/wi": ("mlp.c_fc", "kernel"),
        "mlp/wo": ("mlp.c_proj", "kernel"),
    }
    for i in range(config.num_layers):
        for ours, (theirs, weight) in names.items():
            tensor, merged = f"{BASE}h.{i}.{theirs}", ours == "attention/qkv"
            out[f"layers_{i}/{ours}/{weight}"] = Weight(f"{tensor}.weight", merged=merged)
            out[f"layers_{i}/{ours}/bias"] = Weight(f"{tensor}.bias", merged=merged)
    return out


def read(settings: Settings, tensors: Tensors, dtype: str, layout: Layout = ONE_DEVICE) -> GPT2:
    """Reads the model of a directory."""
    settings.refuse(
        add_cross_attention=False, scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False
    )
    tensors.rename({}, BASE, r"lm_head\..*")
    tied = settings.get("tie_word_embeddings", bool, True)
    width = settings.size("n_embd")
    config = GPT2Config(
        vocab_size=settings.size("vocab_size"),
        emb_dim=width,
        num_heads=settings.size("n_head"),
        mlp_dim=settings.size("n_inner", 4 * width),
        num_layers=settings.size("n_layer"),
        max_positions=settings.size("n_positions"),
        activation=settings.one_of("activation_function", ACTIVATIONS, "gelu_new"),
        layer_norm_epsilon=settings.get("layer_norm_epsilon", float, 1e-5),
        logits_via_embedding=tied and tensors.tie(f"{BASE}wte.weight", "lm_head.weight"),
        dtype=dtype,
    )
    model = read_model(GPT2, config, table(config), tensors, layout)
    tensors.check_all_used(IGNORED)
    return model


def settings_of(config: GPT2Config) -> dict[str, Any]:
    """The contents of ``config.json`` for a network."""
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": config.vocab_size,
        "n_embd": config.emb_dim,
        "n_head": config.num_heads,
        "n_inner": config.mlp_dim,
        "n_layer": config.num_layers,
        "n_positions": config.max_positions,
        "activation_function": ACTIVATIONS_BACK[config.activation],
        "layer_norm_epsilon": config.layer_norm_epsilon,
        "tie_word_embeddings": config.logits_via_embedding,
    }

"""GPT-2 in the Hugging Face layout, whose matrices are stored as ``[inputs, outputs]``."""

from __future__ import annotations

import dataclasses
from typing import Any

from decoding_jax.models.checkpoint import family
from decoding_jax.models.checkpoint.directory import Settings, Tensors
from decoding_jax.models.checkpoint.family import Key
from decoding_jax.models.checkpoint.params import ONE_DEVICE, Layout, Weight, named, read_model
from decoding_jax.models.gpt2 import GPT2, GPT2Config

# Older files contain the causal mask.
IGNORED = r"transformer\.h\.\d+\.attn\.(masked_)?bias"
BASE = "transformer."
KEYS = {
    "vocab_size": Key("vocab_size"),
    "n_embd": Key("emb_dim"),
    "n_head": Key("num_heads"),
    "n_inner": Key("mlp_dim", lambda settings: 4 * settings.size("n_embd")),
    "n_layer": Key("num_layers"),
    "n_positions": Key("max_positions"),
    "activation_function": Key("activation", "gelu_new"),
    "layer_norm_epsilon": Key("layer_norm_epsilon", 1e-5),
    "tie_word_embeddings": Key("logits_via_embedding", True),
}

NAMES = {
    "token_embedder": f"{BASE}wte",
    "position_embedder": f"{BASE}wpe",
    "final_norm": f"{BASE}ln_f",
    "logits_dense": "lm_head",
    r"layers_(\d+)": rf"{BASE}h.\1",
    "pre_attention_norm": "ln_1",
    "attention/qkv": "attn.c_attn",
    "attention/out": "attn.c_proj",
    "pre_mlp_norm": "ln_2",
    "mlp/wi": "mlp.c_fc",
    "mlp/wo": "mlp.c_proj",
}


def table(config: GPT2Config) -> dict[str, Weight]:
    """The tensor of every parameter."""
    return {
        path: x._replace(transposed=path == "logits_dense/kernel", merged="/qkv/" in path)
        for path, x in named(GPT2, config, NAMES).items()
    }


def read(settings: Settings, tensors: Tensors, dtype: str, layout: Layout = ONE_DEVICE) -> GPT2:
    """Reads the model of a directory."""
    settings.refuse(
        add_cross_attention=False, scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False
    )
    tensors.rename({}, BASE, r"lm_head\..*")
    config = GPT2Config(**family.fields_of(KEYS, settings), dtype=dtype)
    tied = config.logits_via_embedding and tensors.tie(f"{BASE}wte.weight", "lm_head.weight")
    config = dataclasses.replace(config, logits_via_embedding=tied)
    model = read_model(GPT2, config, table(config), tensors, layout)
    tensors.check_all_used(IGNORED)
    return model


def settings_of(config: GPT2Config) -> dict[str, Any]:
    """The contents of ``config.json`` for a network."""
    fixed = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}
    return fixed | family.settings_of(KEYS, config)

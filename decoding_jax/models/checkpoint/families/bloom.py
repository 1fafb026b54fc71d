"""BLOOM and MPT: linear biases in the place of positions.

BigScience 2022, "BLOOM: A 176B-Parameter Open-Access Multilingual Language Model"; MosaicML 2023,
"MPT-7B: A New Standard for Open-Source, Commercially Usable LLMs".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from decoding_jax.models.checkpoint.directory import Settings
from decoding_jax.models.checkpoint.family import Family, Key
from decoding_jax.models.llama import LlamaConfig

BLOOM = Family(
    "bloom",
    "BloomForCausalLM",
    {
        "vocab_size": Key("vocab_size"),
        "hidden_size": Key("emb_dim"),
        "n_head": Key("num_heads num_kv_heads"),
        "n_layer": Key("num_layers"),
        "layer_norm_epsilon": Key("norm_epsilon", 1e-5),
        # The length in training, which transformers does not read.
        "seq_length": Key("max_positions", 2048),
        "apply_residual_connection_post_layernorm": Key("normed_residual", False),
        "tie_word_embeddings": Key("logits_via_embedding", True),
    },
    {
        "norm": "layer",
        "gated": False,
        "activation": "gelu",
        "embedding_norm": True,
        "linear_biases": True,
        "rotary_pattern": (False,),
        **dict.fromkeys(("qkv_bias", "out_bias", "mlp_bias"), True),
    },
    {
        "token_embedder": "transformer.word_embeddings",
        "embedding_norm": "transformer.word_embeddings_layernorm",
        "final_norm": "transformer.ln_f",
        "logits_dense": "lm_head",
        "layers": "transformer.h",
        "pre_attention_norm": "input_layernorm",
        "pre_mlp_norm": "post_attention_layernorm",
        **dict.fromkeys(
            ("attention/query", "attention/key", "attention/value"),
            "self_attention.query_key_value",
        ),
        "attention/out": "self_attention.dense",
        "mlp/up": "mlp.dense_h_to_4h",
        "mlp/down": "mlp.dense_4h_to_h",
    },
    by_head=True,
    more=lambda settings, fields: {"mlp_dim": 4 * fields["emb_dim"]},
)


def _attention(settings: Settings, fields: Mapping[str, Any]) -> dict[str, Any]:
    own = settings.section("attn_config")
    own.refuse(attn_type="multihead_attention", prefix_lm=False, qk_ln=False)
    # transformers does not read the last two.
    own.refuse(attn_uses_sequence_id=False, alibi=True, alibi_bias_max=8)
    scale = own.get("softmax_scale", float, None)
    return {
        "mlp_dim": 4 * fields["emb_dim"],
        "clip_qkv": own.get("clip_qkv", float, None) or None,
        "query_scalar": None if scale is None else scale**-2,
    }


def _attention_settings(config: LlamaConfig) -> dict[str, Any]:
    scale = Key("query_scalar", power=-2).write(config)
    return {"attn_config": {"clip_qkv": config.clip_qkv, "softmax_scale": scale}}


MPT = Family(
    "mpt",
    "MptForCausalLM",
    {
        "vocab_size": Key("vocab_size"),
        "d_model": Key("emb_dim"),
        "n_heads": Key("num_heads num_kv_heads"),
        "n_layers": Key("num_layers"),
        "layer_norm_epsilon": Key("norm_epsilon", 1e-5),
        "max_seq_len": Key("max_positions", 2048),
        "tie_word_embeddings": Key("logits_via_embedding", True),
    },
    {
        "norm": "layer_unbiased",
        "gated": False,
        "activation": "gelu_exact",
        "linear_biases": True,
        "rotary_pattern": (False,),
    },
    {
        "token_embedder": "transformer.wte",
        "final_norm": "transformer.norm_f",
        "logits_dense": "lm_head",
        "layers": "transformer.blocks",
        "pre_attention_norm": "norm_1",
        "pre_mlp_norm": "norm_2",
        **dict.fromkeys(("attention/query", "attention/key", "attention/value"), "attn.Wqkv"),
        "attention/out": "attn.out_proj",
        "mlp/up": "ffn.up_proj",
        "mlp/down": "ffn.down_proj",
    },
    refused={"no_bias": True, "expansion_ratio": 4, "logit_scale": None},
    more=_attention,
    more_settings=_attention_settings,
)

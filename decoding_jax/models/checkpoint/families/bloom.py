"""BLOOM: linear biases in the place of positions.

BigScience 2022, "BLOOM: A 176B-Parameter Open-Access Multilingual Language Model".
"""

from decoding_jax.models.checkpoint.family import Family, Key

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
    refused={"apply_residual_connection_post_layernorm": False},
    by_head=True,
    more=lambda settings, fields: {"mlp_dim": 4 * fields["emb_dim"]},
)

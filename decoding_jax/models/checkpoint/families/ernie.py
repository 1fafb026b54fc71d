"""The dense ERNIE 4.5, whose heads are rotated in pairs of neighbours.

ERNIE Team, Baidu 2025, "ERNIE 4.5 Technical Report".
"""

from decoding_jax.models.checkpoint.family import KEYS, Family, Key

ERNIE4_5 = Family(
    "ernie4_5",
    "Ernie4_5ForCausalLM",
    KEYS
    | {
        "num_key_value_heads": Key("num_kv_heads", 2),
        "head_dim": Key("head_dim", 128),
        "rms_norm_eps": Key("norm_epsilon", 1e-5),
        "tie_word_embeddings": Key("logits_via_embedding", True),
        "use_bias": Key("qkv_bias out_bias mlp_bias", False),
    },
    {"rotary_interleaved": True},
    theta=500_000.0,
)

"""Seed-OSS. ByteDance Seed Team 2025, "Seed-OSS Open-Source Models"."""

from decoding_jax.models.checkpoint.family import KEYS, MLP_BIAS, Family, Key

SEED_OSS = Family(
    "seed_oss",
    "SeedOssForCausalLM",
    KEYS
    | MLP_BIAS
    | {
        "num_key_value_heads": Key("num_kv_heads", 8),
        "head_dim": Key("head_dim", 128),
        "attention_bias": Key("qkv_bias", True),
        "attention_out_bias": Key("out_bias", False),
    },
)

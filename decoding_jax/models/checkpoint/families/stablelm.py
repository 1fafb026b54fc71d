"""StableLM 2 and StableLM 3B, without the norms of queries and keys of the largest one.

Bellagente et al. 2024, "Stable LM 2 1.6B Technical Report".
"""

from decoding_jax.models.checkpoint.family import KEYS, Family, Key, without

STABLELM = Family(
    "stablelm",
    "StableLmForCausalLM",
    without(KEYS, "head_dim", "rms_norm_eps")
    | {
        "num_key_value_heads": Key("num_kv_heads", 32),
        "layer_norm_eps": Key("norm_epsilon", 1e-5),
        "use_qkv_bias": Key("qkv_bias", False),
        "use_parallel_residual": Key("parallel", False, choices={True: "one_norm", False: None}),
    },
    {"norm": "layer"},
    refused={"qk_layernorm": False},
    rotary=0.25,
)

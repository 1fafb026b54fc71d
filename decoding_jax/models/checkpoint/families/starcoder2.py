"""StarCoder2. Lozhkov et al. 2024, "StarCoder 2 and The Stack v2: The Next Generation"."""

from decoding_jax.models.checkpoint.families.llama import everywhere
from decoding_jax.models.checkpoint.family import KEYS, NAMES, Family, Key, without

STARCODER2 = Family(
    "starcoder2",
    "Starcoder2ForCausalLM",
    without(KEYS, "rms_norm_eps")
    | {
        "num_key_value_heads": Key("num_kv_heads", 2),
        "hidden_act": Key("activation", "gelu_pytorch_tanh"),
        "norm_epsilon": Key("norm_epsilon", 1e-5),
        "use_bias": Key("qkv_bias out_bias mlp_bias", True),
        "tie_word_embeddings": Key("logits_via_embedding", True),
    },
    {"norm": "layer", "gated": False},
    NAMES | {"mlp/up": "mlp.c_fc", "mlp/down": "mlp.c_proj"},
    window=everywhere,
)

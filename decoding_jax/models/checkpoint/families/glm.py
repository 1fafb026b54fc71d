"""GLM-4: neighbours in half of each head are rotated; in its later version, norms on both sides.

Team GLM 2024, "ChatGLM: A Family of Large Language Models from GLM-130B to GLM-4 All Tools".
"""

import dataclasses

from decoding_jax.models.checkpoint.family import KEYS, NAMES, Family, Key

GLM = Family(
    "glm",
    "GlmForCausalLM",
    KEYS
    | {
        "num_key_value_heads": Key("num_kv_heads", 2),
        "head_dim": Key("head_dim", 128),
        "rms_norm_eps": Key("norm_epsilon", 0.00000015625),
        "attention_bias": Key("qkv_bias", True),
    },
    {"rotary_interleaved": True},
    NAMES | {"mlp/gate": "mlp.gate_up_proj", "mlp/up": "mlp.gate_up_proj"},
    rotary=0.5,
)
GLM4 = dataclasses.replace(
    GLM,
    model_type="glm4",
    architecture="Glm4ForCausalLM",
    fixed={**GLM.fixed, "norm_place": "both"},
    names={
        **GLM.names,
        "post_attention_norm": "post_self_attn_layernorm",
        "post_mlp_norm": "post_mlp_layernorm",
    },
)

"""GPT-NeoX-20B and Pythia: attention and feed-forward part in parallel, each with a norm.

Black et al. 2022, "GPT-NeoX-20B: An Open-Source Autoregressive Language Model"; Biderman et al.
2023, "Pythia".
"""

from __future__ import annotations

from typing import Any

from decoding_jax.models.checkpoint.family import KEYS, Family, Key, rotated_fraction, without
from decoding_jax.models.llama import LlamaConfig


def _more_settings(config: LlamaConfig) -> dict[str, Any]:
    return {"rotary_emb_base": config.rope_theta, "rotary_pct": rotated_fraction(config)}


GPT_NEOX = Family(
    "gpt_neox",
    "GPTNeoXForCausalLM",
    without(KEYS, "head_dim", "num_key_value_heads", "rms_norm_eps")
    | {
        "num_attention_heads": Key("num_heads num_kv_heads"),
        "hidden_act": Key("activation", "gelu"),
        "layer_norm_eps": Key("norm_epsilon", 1e-5),
        "attention_bias": Key("qkv_bias out_bias", True),
        "use_parallel_residual": Key("parallel", True, choices={True: "two_norms", False: None}),
    },
    {"norm": "layer", "gated": False, "mlp_bias": True},
    {
        "token_embedder": "gpt_neox.embed_in",
        "final_norm": "gpt_neox.final_layer_norm",
        "logits_dense": "embed_out",
        "layers": "gpt_neox.layers",
        "pre_attention_norm": "input_layernorm",
        "pre_mlp_norm": "post_attention_layernorm",
        "attention/query": "attention.query_key_value",
        "attention/key": "attention.query_key_value",
        "attention/value": "attention.query_key_value",
        "attention/out": "attention.dense",
        "mlp/up": "mlp.dense_h_to_4h",
        "mlp/down": "mlp.dense_4h_to_h",
    },
    theta=lambda settings: settings.get("rotary_emb_base", float, 10_000.0),
    rotary=lambda settings: settings.get("rotary_pct", float, 0.25),
    by_head=True,
    more_settings=_more_settings,
    # Older files contain the causal mask and the rotary frequencies.
    ignored=r"gpt_neox\.layers\.\d+\.attention\.((masked_)?bias|rotary_emb\.inv_freq)",
)

"""OPT. That of 350M has norms behind the parts of a layer, and narrow embeddings.

Zhang et al. 2022, "OPT: Open Pre-trained Transformer Language Models".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from decoding_jax.models.checkpoint.directory import Settings
from decoding_jax.models.checkpoint.family import KEYS, NAMES, Family, Key, without


def _width(settings: Settings, fields: Mapping[str, Any]) -> dict[str, Any]:
    width = settings.size(_WIDTH, fields["emb_dim"])
    return {"token_dim": None if width == fields["emb_dim"] else width}


_WIDTH = "word_embed_proj_dim"

OPT = Family(
    "opt",
    "OPTForCausalLM",
    without(
        KEYS, "head_dim", "num_key_value_heads", "hidden_act", "rms_norm_eps", "intermediate_size"
    )
    | {
        "num_attention_heads": Key("num_heads num_kv_heads"),
        "ffn_dim": Key("mlp_dim"),
        "activation_function": Key("activation", "relu"),
        "do_layer_norm_before": Key("norm_place", True, choices={True: "before", False: "sum"}),
        "enable_bias": Key("qkv_bias out_bias mlp_bias", True),
        "tie_word_embeddings": Key("logits_via_embedding", True),
    },
    {
        "norm": "layer",
        "norm_epsilon": 1e-5,
        "gated": False,
        "learned_positions": 2,
        "rotary_pattern": (False,),
    },
    NAMES
    | {
        "token_embedder": "model.decoder.embed_tokens",
        "position_embedder": "model.decoder.embed_positions",
        "final_norm": "model.decoder.final_layer_norm",
        "embedding_in": "model.decoder.project_in",
        "embedding_out": "model.decoder.project_out",
        "layers": "model.decoder.layers",
        **dict.fromkeys(("pre_attention_norm", "post_attention_norm"), "self_attn_layer_norm"),
        **dict.fromkeys(("pre_mlp_norm", "post_mlp_norm"), "final_layer_norm"),
        "attention/out": "self_attn.out_proj",
        "mlp/up": "fc1",
        "mlp/down": "fc2",
    },
    refused={"layer_norm_elementwise_affine": True, "_remove_final_layer_norm": False},
    more=_width,
    more_settings=lambda config: {_WIDTH: config.token_dim or config.emb_dim},
    renamed={r"decoder\.": "model.decoder."},
)

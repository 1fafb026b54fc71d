"""GPT-2; GPT-J; and GPT-Neo, in which layers with a window alternate with others.

Wang & Komatsuzaki 2021, "GPT-J-6B: A 6 Billion Parameter Autoregressive Model"; Black et al. 2021,
"GPT-Neo: Large Scale Autoregressive Language Modeling with Mesh-Tensorflow".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from decoding_jax.models.checkpoint.directory import Settings
from decoding_jax.models.checkpoint.family import Family, Key
from decoding_jax.models.checkpoint.params import Weight
from decoding_jax.models.checkpoint.position_settings import read_window
from decoding_jax.models.gpt2 import GPT2, GPT2Config
from decoding_jax.models.llama import LlamaConfig
from decoding_jax.models.view import is_local


class _InputsFirst(Family):
    """A family whose layers have their kernels stored as ``[inputs, outputs]``."""

    def _weight(self, own: str, shapes: Mapping[str, Any], config: LlamaConfig) -> Weight:
        """See ``Family``."""
        weight = super()._weight(own, shapes, config)
        return weight._replace(transposed=own == "logits_dense/kernel")


GPT_2 = _InputsFirst(
    "gpt2",
    "GPT2LMHeadModel",
    {
        "vocab_size": Key("vocab_size"),
        "n_embd": Key("emb_dim"),
        "n_head": Key("num_heads num_kv_heads"),
        "n_layer": Key("num_layers"),
        "n_inner": Key("mlp_dim", lambda settings: 4 * settings.size("n_embd")),
        "n_positions": Key("max_positions"),
        "activation_function": Key("activation", "gelu_new"),
        "layer_norm_epsilon": Key("norm_epsilon", 1e-5),
        "tie_word_embeddings": Key("logits_via_embedding", True),
    },
    names={
        "token_embedder": "transformer.wte",
        "position_embedder": "transformer.wpe",
        "final_norm": "transformer.ln_f",
        "logits_dense": "lm_head",
        "layers": "transformer.h",
        "pre_attention_norm": "ln_1",
        "pre_mlp_norm": "ln_2",
        **dict.fromkeys(("attention/query", "attention/key", "attention/value"), "attn.c_attn"),
        "attention/out": "attn.c_proj",
        "mlp/up": "mlp.c_fc",
        "mlp/down": "mlp.c_proj",
    },
    refused={
        "add_cross_attention": False,
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
    },
    # Older files contain the causal mask.
    ignored=r"transformer\.h\.\d+\.attn\.(masked_)?bias",
    model=GPT2,
    config=GPT2Config,
)
_SEPARATE = {
    "attention/query": "attn.q_proj",
    "attention/key": "attn.k_proj",
    "attention/value": "attn.v_proj",
    "attention/out": "attn.out_proj",
}
GPT_J = Family(
    "gptj",
    "GPTJForCausalLM",
    {
        **GPT_2.keys,
        "rotary_dim": Key("rotary_dim"),
        "tie_word_embeddings": Key("logits_via_embedding", False),
    },
    {
        "norm": "layer",
        "parallel": "one_norm",
        "gated": False,
        "rotary_interleaved": True,
        "mlp_bias": True,
        "logits_bias": True,
    },
    {**GPT_2.names, **_SEPARATE, "mlp/up": "mlp.fc_in", "mlp/down": "mlp.fc_out"},
    ignored=GPT_2.ignored,
)


def _layers(settings: Settings, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The window of local layers, from pairs of kinds and how often they are repeated."""
    stated = settings.get(_TYPES, list, [[["global", "local"], 12]])
    kinds = [kind for pair, count in stated for kind in count * pair]
    if len(kinds) != fields["num_layers"] or not {*kinds} <= {"global", "local"}:
        expected = f"global or local for each of {fields['num_layers']} layers"
        raise settings.error(_TYPES, stated, expected)
    size = settings.size("window_size", 256)
    window, pattern = read_window(settings, size, [kind == "local" for kind in kinds])
    return {"window": window, "window_pattern": pattern}


_TYPES = "attention_types"


def _layer_settings(config: LlamaConfig) -> dict[str, Any]:
    local = [config.window and is_local(config.window_pattern, i) for i in range(config.num_layers)]
    return {
        _TYPES: [[["local" if x else "global"], 1] for x in local],
        "window_size": config.window or config.max_positions,
    }


GPT_NEO = Family(
    "gpt_neo",
    "GPTNeoForCausalLM",
    {
        "vocab_size": Key("vocab_size"),
        "hidden_size": Key("emb_dim"),
        "num_heads": Key("num_heads num_kv_heads"),
        "num_layers": Key("num_layers"),
        "intermediate_size": Key("mlp_dim", lambda settings: 4 * settings.size("hidden_size")),
        "max_position_embeddings": Key("max_positions"),
        "activation_function": Key("activation", "gelu_new"),
        "layer_norm_epsilon": Key("norm_epsilon", 1e-5),
        "tie_word_embeddings": Key("logits_via_embedding", True),
    },
    {
        "norm": "layer",
        "gated": False,
        "learned_positions": 0,
        "rotary_pattern": (False,),
        "query_scalar": 1.0,
        "out_bias": True,
        "mlp_bias": True,
    },
    {**GPT_2.names, **{k: x.replace("attn.", "attn.attention.") for k, x in _SEPARATE.items()}},
    more=_layers,
    more_settings=_layer_settings,
    ignored=r"transformer\.h\.\d+\.attn\.attention\.(masked_)?bias",
)

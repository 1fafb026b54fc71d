"""Arcee's AFM and Nemotron: feed-forward parts with squared rectifiers and no gates.

So et al. 2021, "Primer: Searching for Efficient Transformers for Language Modeling"; Parmar et al.
2024, "Nemotron-4 15B Technical Report".
"""

from decoding_jax.models.checkpoint.family import (
    ATTENTION_BIAS,
    KEYS,
    MLP_BIAS,
    Family,
    Key,
    without,
)

ARCEE = Family(
    "arcee",
    "ArceeForCausalLM",
    KEYS
    | ATTENTION_BIAS
    | MLP_BIAS
    | {
        "hidden_act": Key("activation", "relu2"),
        "rms_norm_eps": Key("norm_epsilon", 1e-5),
    },
    {"gated": False},
)
NEMOTRON = Family(
    "nemotron",
    "NemotronForCausalLM",
    without(ARCEE.keys, "rms_norm_eps") | {"norm_eps": Key("norm_epsilon", 1e-5)},
    {"gated": False, "norm": "layer_offset"},
    rotary=0.5,
)

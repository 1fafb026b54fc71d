"""Granite, whose embeddings, residuals, attention and logits are scaled.

Granite Team 2024, "Granite 3.0 Language Models". The factors are those of Yang et al. 2022, "Tensor
Programs V: Tuning Large Neural Networks via Zero-Shot Hyperparameter Transfer".
"""

from decoding_jax.models.checkpoint.family import ATTENTION_BIAS, KEYS, MLP_BIAS, Family, Key

GRANITE = Family(
    "granite",
    "GraniteForCausalLM",
    KEYS
    | ATTENTION_BIAS
    | MLP_BIAS
    | {
        "embedding_multiplier": Key("embedding_scale", 1.0),
        "residual_multiplier": Key("residual_scale", 1.0),
        "attention_multiplier": Key("query_scalar", 1.0, power=-2),
        "logits_scaling": Key("logit_scale", 1.0, power=-1),
    },
)

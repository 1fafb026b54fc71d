"""Falcon: one or a few key-value heads, parallel parts, and rotary positions or linear biases.

Almazrouei et al. 2023, "The Falcon Series of Open Language Models".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from decoding_jax.models.checkpoint.directory import Settings
from decoding_jax.models.checkpoint.families.bloom import BLOOM
from decoding_jax.models.checkpoint.family import KEYS, Family, Key, without
from decoding_jax.models.checkpoint.params import Weight
from decoding_jax.models.llama import LlamaConfig


def _more(settings: Settings, fields: Mapping[str, Any]) -> dict[str, Any]:
    heads, new = fields["num_heads"], settings.get("new_decoder_architecture", bool, False)
    norms = settings.get("num_ln_in_parallel_attn", int, 2 if new else 1)
    if norms not in (1, 2)[: 1 + new]:
        raise settings.error("num_ln_in_parallel_attn", norms, "1 or 2" if new else "1")
    if new:
        settings.refuse(parallel_attn=True)
        parallel: str | None = "two_norms" if norms == 2 else "one_norm"
        heads = settings.size("num_kv_heads", heads)
    else:
        parallel = "one_norm" if settings.get("parallel_attn", bool, True) else None
        heads = 1 if settings.get("multi_query", bool, True) else heads
    rotated = (not fields["linear_biases"],)
    return {"num_kv_heads": heads, "parallel": parallel, "rotary_pattern": rotated}


def _more_settings(config: LlamaConfig) -> dict[str, Any]:
    one, two_norms = config.num_kv_heads == 1, config.parallel == "two_norms"
    new = config.parallel is not None and (two_norms or not one)
    return {
        "new_decoder_architecture": new,
        "multi_query": one,
        "parallel_attn": config.parallel is not None,
        "num_kv_heads": config.num_kv_heads if new else None,
        "num_ln_in_parallel_attn": 1 + two_norms if new else None,
    }


class _Falcon(Family):
    def table(self, config: LlamaConfig) -> dict[str, Weight]:
        """See ``Family.table``. Where there are two norms, they have other names."""
        if config.parallel != "two_norms":
            return super().table(config)
        norms = {"pre_attention_norm": "ln_attn", "pre_mlp_norm": "ln_mlp"}
        return Family.table(dataclasses.replace(self, names={**self.names, **norms}), config)


FALCON = _Falcon(
    "falcon",
    "FalconForCausalLM",
    without(
        KEYS, "head_dim", "num_key_value_heads", "hidden_act", "intermediate_size", "rms_norm_eps"
    )
    | {
        "ffn_hidden_size": Key("mlp_dim", lambda settings: 4 * settings.size("hidden_size")),
        "activation": Key("activation", "gelu"),
        "layer_norm_epsilon": Key("norm_epsilon", 1e-5),
        "bias": Key("qkv_bias out_bias mlp_bias", False),
        "alibi": Key("linear_biases rounded_biases", False),
        "tie_word_embeddings": Key("logits_via_embedding", True),
    },
    {"norm": "layer", "gated": False},
    BLOOM.names,
    positions=2048,
    by_head=True,
    more=_more,
    more_settings=_more_settings,
)

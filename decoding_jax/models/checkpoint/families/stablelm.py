"""StableLM 2 and StableLM 3B, without the norms of queries and keys of the largest one.

Bellagente et al. 2024, "Stable LM 2 1.6B Technical Report".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from decoding_jax.models.checkpoint.directory import Settings
from decoding_jax.models.checkpoint.family import KEYS, Family, Key, without


def _parallel(settings: Settings, fields: Mapping[str, Any]) -> dict[str, Any]:
    return {"parallel": "one_norm" if settings.get(_PARALLEL, bool, False) else None}


_PARALLEL = "use_parallel_residual"

STABLELM = Family(
    "stablelm",
    "StableLmForCausalLM",
    without(KEYS, "head_dim", "rms_norm_eps")
    | {
        "num_key_value_heads": Key("num_kv_heads", 32),
        "layer_norm_eps": Key("norm_epsilon", 1e-5),
        "use_qkv_bias": Key("qkv_bias", False),
    },
    {"norm": "layer"},
    refused={"qk_layernorm": False},
    rotary=0.25,
    more=_parallel,
    more_settings=lambda config: {_PARALLEL: config.parallel == "one_norm"},
)

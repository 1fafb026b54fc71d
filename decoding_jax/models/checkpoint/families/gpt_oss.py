"""gpt-oss: experts with biases, sinks of attention, and a window in every other layer.

OpenAI 2025, "gpt-oss-120b & gpt-oss-20b Model Card"; Xiao et al. 2024, "Efficient Streaming
Language Models with Attention Sinks". The released files have experts in MXFP4 (Open Compute
Project 2023, "OCP Microscaling Formats (MX) Specification"), which are widened, without rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from decoding_jax.models.checkpoint.directory import Index, Settings, Tensors
from decoding_jax.models.checkpoint.family import KEYS, NAMES, Family, Key, without
from decoding_jax.models.checkpoint.position_settings import local_layers, settings_of_scaling
from decoding_jax.models.llama import LlamaConfig

_FLOATS = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)


def widened(blocks: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """The numbers of MXFP4, float32 ``[..., 32 G]``.

    Args:
      blocks: uint8 ``[..., G, 16]``, each two floats of 4 bits, the first in the lower bits.
      scales: uint8 ``[..., G]``, the binary exponents of groups, plus 127.

    Example:
      >>> widened(np.uint8([[[0x21, *[0] * 14, 0xF0]]]), np.uint8([[128]]))[0, [0, 1, 31]].tolist()
      [1.0, 2.0, -12.0]
    """
    values = np.concatenate([_FLOATS, -_FLOATS])[np.stack([blocks & 15, blocks >> 4], -1)]
    values = np.ldexp(values.reshape(*blocks.shape[:-1], -1), scales[..., None].astype(int) - 127)
    return values.reshape(*scales.shape[:-1], -1)


class _Widened:
    """Kernels ``[E, D, F]`` in MXFP4, with the methods of a slice of ``safetensors``."""

    def __init__(self, blocks: Any, scales: Any):
        self.blocks, self.scales = blocks, scales

    def get_shape(self) -> list[int]:
        experts, outputs, groups, size = self.blocks.get_shape()
        return [experts, 2 * groups * size, outputs]

    def get_dtype(self) -> str:
        return "BF16"

    def __getitem__(self, index: Index) -> np.ndarray:
        read = index[:1]
        return widened(self.blocks[read], self.scales[read]).swapaxes(1, 2)[:, *index[1:]]


class _GptOss(Family):
    def prepare(self, tensors: Tensors) -> None:
        """Widens kernels in MXFP4."""
        for name in [x.removesuffix("_blocks") for x in tensors.names if x.endswith("_blocks")]:
            both = [tensors.take(f"{name}_{part}") for part in ("blocks", "scales")]
            tensors.add(name, _Widened(*both))


def _stated(settings: Settings, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Refuses files without rotary settings, for which transformers has some of its own."""
    if not settings.section("rope_scaling", "rope_parameters").values:
        raise settings.error("rope_scaling", None, "the object that the released files have")
    return {}


def _scaling(config: LlamaConfig) -> dict[str, Any]:
    return {"rope_scaling": settings_of_scaling(config.rope_scaling) or {"rope_type": "default"}}


def _window(settings: Settings, num_layers: int) -> tuple[Any, list[bool]]:
    return settings.values.get("sliding_window", 128), local_layers(num_layers, 2)


GPT_OSS = _GptOss(
    "gpt_oss",
    "GptOssForCausalLM",
    without(KEYS, "hidden_act")
    | {
        "num_key_value_heads": Key("num_kv_heads", 8),
        "head_dim": Key("head_dim", 64),
        "rms_norm_eps": Key("norm_epsilon", 1e-5),
        "attention_bias": Key("qkv_bias out_bias", True),
        "num_local_experts": Key("num_experts", 128),
        "num_experts_per_tok": Key("experts_per_token", 4),
        "swiglu_alpha": Key("gate_slope", 1.702),
        "swiglu_limit": Key("gate_bound", 7.0),
    },
    {"attention_sinks": True, "expert_bias": True},
    NAMES
    | {
        "attention/sinks": "self_attn.sinks",
        "mlp/router": "mlp.router",
        "mlp/gate_experts/kernel": "mlp.experts.gate_up_proj",
        "mlp/up_experts/kernel": "mlp.experts.gate_up_proj",
        "mlp/down_experts/kernel": "mlp.experts.down_proj",
        "mlp/gate_experts/bias": "mlp.experts.gate_up_proj_bias",
        "mlp/up_experts/bias": "mlp.experts.gate_up_proj_bias",
        "mlp/down_experts/bias": "mlp.experts.down_proj_bias",
    },
    refused={"hidden_act": "silu"},
    theta=150_000.0,
    window=_window,
    more=_stated,
    more_settings=_scaling,
)

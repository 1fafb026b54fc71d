"""Reads checkpoints of MaxText without MaxText, as directories of Hugging Face's layout.

Orbax writes the parameters to a folder ``items``, as a tree ``params/params`` with arrays for each
layer or, where layers are scanned, with an axis of layers. ``param_mapping.py`` of MaxText
(https://github.com/AI-Hypercomputer/maxtext, at e591f30) relates them to the tensors of
``transformers``. The settings are in a file of MaxText's own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import yaml

from decoding_jax.models.checkpoint.directory import CheckpointError, Settings, Tensors
from decoding_jax.models.checkpoint.stored_arrays import (
    METADATA,
    Converted,
    ConvertedTensors,
    StoredArray,
    orbax_arrays,
)
from decoding_jax.storage import StoragePath

_ITEMS, _CONFIG = "items", "config.yml"
_PERIOD = 6  # layers of Gemma 3 that are scanned together


def _named(ours: str, theirs: str, **parts: str) -> dict[str, str]:
    return {ours.format(x): theirs.format(y) for x, y in parts.items()}


_KERNELS = _named(
    *("self_attention/{}/kernel", "self_attn.{}_proj.weight"),
    query="q",
    key="k",
    value="v",
    out="o",
) | _named("mlp/{}/kernel", "mlp.{}_proj.weight", wi_0="gate", wi_1="up", wo="down")
_BIASES = _named(
    *("self_attention/{}/bias", "self_attn.{}_proj.bias"), query="q", key="k", value="v"
)
_HEAD_NORMS = _named("self_attention/{}_norm/scale", "self_attn.{}_norm.weight", query="q", key="k")
_LAYER = _KERNELS | _named(
    *("{}_self_attention_layer_norm/scale", "{}_layernorm.weight"),
    pre="input",
    post="post_attention",
)
_NORM = "{}_norm/scale", "{}_layernorm.weight"
_GEMMA = _KERNELS | _named(*_NORM, pre_self_attention="input", pre_ffw="post_attention")
_GEMMA2 = _GEMMA | _named(
    *_NORM,
    post_self_attention="post_attention",
    pre_ffw="pre_feedforward",
    post_ffw="post_feedforward",
)


class _Block(NamedTuple):
    """A decoder block: its family, names of arrays and tensors, and settings with one value."""

    model_type: str
    layer: dict[str, str]
    only: dict[str, Any]


_UNCAPPED = {"attn_logits_soft_cap": 0.0, "final_logits_soft_cap": 0.0}
_PLAIN = {"use_qk_norm": False, "attention_bias": False, **_UNCAPPED}
_NORMS = {"use_post_attn_norm": True, "use_post_ffw_norm": True}
_BLOCKS = {
    "llama2": _Block("llama", _LAYER, _PLAIN),
    "qwen2": _Block("qwen2", _LAYER | _BIASES, {**_PLAIN, "attention_bias": True}),
    "qwen3": _Block("qwen3", _LAYER | _HEAD_NORMS, {**_PLAIN, "use_qk_norm": True}),
    "gemma": _Block("gemma", _GEMMA, _UNCAPPED),
    "gemma2": _Block("gemma2", _GEMMA2, _NORMS),
    "gemma3": _Block("gemma3_text", _GEMMA2 | _HEAD_NORMS, _NORMS),
}
# MaxText's configs/base.yml, and the values of it that are the only ones that are followed here.
_DEFAULTS: dict[str, Any] = {
    "model_name": "default",
    "decoder_block": "llama2",
    "vocab_size": 32_000,
    "head_dim": 128,
    "base_emb_dim": 2048,
    "base_num_query_heads": 16,
    "base_num_kv_heads": 16,
    "base_mlp_dim": 7168,
    "base_num_decoder_layers": 16,
    "max_target_length": 2048,
    "mlp_activations": ["silu", "linear"],
    "normalization_layer_epsilon": 1e-5,
    "logits_via_embedding": False,
    "normalize_embedding_logits": True,
    "attn_logits_soft_cap": 0.0,
    "final_logits_soft_cap": 0.0,
    "rope_type": "default",
    "rope_use_scale": True,
    "rope_max_timescale": 10_000.0,
    "rope_linear_scaling_factor": 1.0,
    "local_rope_max_timescale": -1.0,
    "sliding_window_size": 0,
    "scan_layers": True,
    "param_scan_axis": 1,
    "use_qk_norm": False,
    "attention_bias": False,
    "use_post_attn_norm": False,
    "use_post_ffw_norm": False,
}
_ONLY: dict[str, Any] = {
    "global_parameter_scale": 1,
    "num_experts": 1,
    "attention_type": "global",
    "share_kv_projections": False,
    "fused_qkv": False,
    "fused_mlp": False,
    "rope_min_timescale": 1,
    "quantization": "",
    "mtp_num_layers": 0,
}
_ACTIVATIONS = {"silu": "silu", "gelu": "gelu_pytorch_tanh"}
_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def find_maxtext(directory: StoragePath) -> StoragePath | None:
    """The folder of the newest checkpoint in the directory of a run, of its checkpoints, of a step,
    or of arrays; None if there is none."""
    if (directory / METADATA).is_file():
        return directory
    if (directory / _ITEMS / METADATA).is_file():
        return directory / _ITEMS
    folders = [f for f in (directory, directory / "checkpoints") if f.is_dir()]
    found = {int(p.name): p / _ITEMS for f in folders for p in f.glob("*") if p.name.isdecimal()}
    steps = [step for step, path in found.items() if (path / METADATA).is_file()]
    return found[max(steps)] if steps else None


def read_maxtext(directory: StoragePath, items: StoragePath) -> tuple[Settings, Tensors]:
    """The settings and the tensors of a checkpoint, as those of a directory of Hugging Face's.

    Args:
      directory: has the file with MaxText's settings: ``config.yml``, or one of its
        ``configs/models`` by its own name.
      items: the checkpoint, from ``find_maxtext``.

    Raises:
      CheckpointError: in one line, for a file that is missing or a setting that is not followed.
    """
    given = _settings(directory)
    name = given.get("decoder_block", str)
    if name not in _BLOCKS:
        raise given.error("decoder_block", name, "one of " + ", ".join(_BLOCKS))
    given.refuse(**_ONLY, **_BLOCKS[name].only)
    if given.get("logits_via_embedding", bool):
        given.refuse(normalize_embedding_logits=name.startswith("gemma"))
    values = _config(given, name)
    return Settings(given.path, values), _tensors(given, name, values, items)


def _settings(directory: StoragePath) -> Settings:
    """The settings of MaxText's file, and its defaults."""
    files: list[Any] = sorted(directory.glob("*.yml"))
    chosen = [path for path in files if path.name == _CONFIG] or files
    if len(chosen) != 1:
        raise CheckpointError(
            f"{directory}: has a checkpoint of Orbax; expected MaxText's settings beside it, as "
            f"{_CONFIG}, got {', '.join(path.name for path in files) or 'no file'}"
        )
    [path] = chosen
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
        if not isinstance(values, dict):
            raise ValueError(f"{type(values).__name__} in place of settings by name")
        if path.name != _CONFIG:
            values.setdefault("model_name", path.name.removesuffix(".yml"))
        values = _DEFAULTS | values
        for key, default in _DEFAULTS.items():
            if isinstance(default, float):
                values[key] = float(values[key])  # YAML takes 1e-06 for a text.
    except (yaml.YAMLError, ValueError, TypeError) as e:
        raise CheckpointError(f"{path}: is not MaxText's ({' '.join(str(e).split())})") from e
    return Settings(path, values)


def _config(given: Settings, block: str) -> dict[str, Any]:
    """The contents of ``config.json`` for MaxText's settings."""
    activations = given.get("mlp_activations", list)
    if activations not in [[name, "linear"] for name in _ACTIVATIONS]:
        raise given.error("mlp_activations", activations, '["silu" or "gelu", "linear"]')
    width, heads = given.size("base_emb_dim"), given.size("base_num_query_heads")
    by_width = given.values["model_name"] == "gemma3-27b"
    theta, factor = given.values["rope_max_timescale"], given.values["rope_linear_scaling_factor"]
    scaling = None if factor == 1 else {"rope_type": "linear", "factor": factor}
    if _is_interleaved(given):
        scaling = _LLAMA3 if given.get("rope_use_scale", bool) else None
    local = given.values["local_rope_max_timescale"]
    values = {
        "model_type": _BLOCKS[block].model_type,
        "vocab_size": given.size("vocab_size"),
        "hidden_size": width,
        "num_hidden_layers": given.size("base_num_decoder_layers") * (1 + (block == "gemma2")),
        "num_attention_heads": heads,
        "num_key_value_heads": given.size("base_num_kv_heads"),
        "head_dim": given.size("head_dim"),
        "intermediate_size": given.size("base_mlp_dim"),
        "hidden_act": _ACTIVATIONS[activations[0]],
        "hidden_activation": _ACTIVATIONS[activations[0]],
        "rms_norm_eps": given.values["normalization_layer_epsilon"],
        "tie_word_embeddings": given.get("logits_via_embedding", bool),
        "max_position_embeddings": given.size("max_target_length"),
        "query_pre_attn_scalar": width // heads if by_width else given.size("head_dim"),
        "attn_logit_softcapping": given.values["attn_logits_soft_cap"] or None,
        "final_logit_softcapping": given.values["final_logits_soft_cap"] or None,
        "rope_theta": theta,
        "rope_scaling": scaling,
        "rope_local_base_freq": local if local > 0 else theta,
    }
    if block in ("gemma2", "gemma3"):
        values["sliding_window"] = given.size("sliding_window_size")
    return values


def _is_interleaved(given: Settings) -> bool:
    """Whether dimensions 2i and 2i + 1 of a head are rotated together, and not i and i + d/2."""
    rope = given.one_of("rope_type", {"default": "", "llama3.1": "llama3.1"}, "default")
    return bool(rope) or given.get("model_name", str).startswith("llama3.1")


def _place(block: str, i: int, count: int, scanned: bool) -> tuple[str, str, int | None]:
    """The folder of layer i, how its parts' names end, and its index where layers are stacked."""
    if block == "gemma2":  # Each of its layers has one with a window and one without.
        folder, _, index = _place("gemma", i // 2, count // 2, scanned)
        return folder, ("_local", "_global")[i % 2], index
    if not scanned:
        return f"layers_{i}", "", None
    if block != "gemma3":
        return "layers", "", i
    group, within = divmod(i, _PERIOD)
    if group < count // _PERIOD:
        return f"layers/layers_{within}", "", group
    return f"layers_remainder/layers_{within}", "", None


def _tensors(
    given: Settings, block: str, values: dict[str, Any], items: StoragePath
) -> ConvertedTensors:
    """The tensors of a checkpoint under the names of Hugging Face's layout."""
    arrays = orbax_arrays(items, _name)
    places: dict[str, tuple[str, int | None]] = {
        "model.embed_tokens.weight": ("token_embedder/embedding", None),
        "model.norm.weight": ("decoder/decoder_norm/scale", None),
        "lm_head.weight": ("decoder/logits_dense/kernel", None),
    }
    count, scanned = values["num_hidden_layers"], given.get("scan_layers", bool)
    for i in range(count):
        folder, suffix, index = _place(block, i, count, scanned)
        for ours, theirs in _BLOCKS[block].layer.items():
            part, rest = ours.split("/", 1)
            array = f"decoder/{folder}/{part}{suffix}/{rest}"
            places[f"model.layers.{i}.{theirs}"] = array, index
    found = {
        name: _converted(name, arrays[array], array, index, given, block, values)
        for name, (array, index) in places.items()
        if array in arrays
    }
    known = {array for array, _ in places.values()}
    others = [array for name, array in arrays.items() if name not in known]
    return ConvertedTensors(items, given.path.name, found, others)


def _converted(
    name: str,
    array: StoredArray,
    array_name: str,
    index: int | None,
    given: Settings,
    block: str,
    values: dict[str, Any],
) -> Converted:
    """The tensor that is made of an array, or of one layer's part of it."""
    axis, shape = given.get("param_scan_axis", int), array.shape
    at: tuple[slice | int, ...] = ()
    if index is not None:
        shape, at = (*shape[:axis], *shape[axis + 1 :]), (*[slice(None)] * axis, index)
    is_gemma, size = block.startswith("gemma"), values["vocab_size"]
    if array_name.endswith("/embedding"):
        # Rows beyond the vocabulary fill the table up.
        scale = 1 / math.sqrt(shape[1]) if is_gemma else 1.0
        if block == "gemma3":
            scale = 1 / float(ml_dtypes.bfloat16(math.sqrt(shape[1])))
        table = min(size, shape[0]), shape[1]
        return Converted(array, (slice(0, size),), table, lambda x: x * np.float32(scale))
    if array_name.endswith("logits_dense/kernel"):
        table = min(size, shape[1]), shape[0]
        return Converted(array, (slice(None), slice(0, size)), table, np.transpose)
    if not array_name.endswith("/kernel"):
        offset = -float(is_gemma and array_name.endswith("/scale"))
        return Converted(array, at, (math.prod(shape),), lambda x: x + np.float32(offset))
    inputs = math.prod(shape[:-1]) if name.endswith(".o_proj.weight") else shape[0]
    scaled = name.endswith(".q_proj.weight") and block in ("llama2", "gemma", "gemma2")
    rotated = name.endswith((".q_proj.weight", ".k_proj.weight"))
    factor = np.float32(math.sqrt(shape[-1]) if scaled else 1.0)
    halves = rotated and _is_interleaved(given)

    def kernel(x: np.ndarray) -> np.ndarray:
        if halves:  # The interleaved dimensions of heads are put into two halves.
            x = np.concatenate([x[..., ::2], x[..., 1::2]], -1)
        return (x * factor).reshape(inputs, -1).T

    return Converted(array, at, (math.prod(shape) // inputs, inputs), kernel)


def _name(keys: Sequence[str]) -> str | None:
    """The path of an array within ``params/params``; None for one of the optimizer."""
    path = [key for key in keys if key != "params"]
    return "/".join(path) if keys[0] == "params" else None

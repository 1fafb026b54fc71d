"""Reads checkpoints of the library ``gemma``, such as Kaggle has, as directories of Hugging Face's.

Orbax writes the parameters as a tree. The released checkpoints have flat names of modules, such as
``transformer/layer_0/attn/q_einsum``, or stack the layers of one kind of attention; the library
saves nested names, and its trainer has them below ``params``. Flax's example of Gemma reads the
same files. The layouts are those of ``gm/nn/_modules.py``, ``gm/nn/_gemma.py`` and
``gm/ckpts/_checkpoint.py`` of https://github.com/google-deepmind/gemma, version 3.3.0.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from decoding_jax.models.checkpoint.directory import (
    CONFIG,
    INDEX,
    WEIGHTS,
    CheckpointError,
    Settings,
    Tensors,
)
from decoding_jax.models.checkpoint.stored_arrays import (
    METADATA,
    Converted,
    ConvertedTensors,
    StoredArray,
    orbax_arrays,
    orbax_tree,
)
from decoding_jax.models.checkpoint.t5x import find_t5x
from decoding_jax.storage import StoragePath

_TABLE = "embedder/input_embedding"
_OTHERS = r"(SigLiPFromPatches_0|vision_encoder|opt_state|collections|step|embedder/mm_\w+)(/.*)?"
"""The networks for images, and what a trainer keeps."""


def _heads(x: np.ndarray) -> np.ndarray:
    return x.swapaxes(1, 2).reshape(-1, x.shape[1])


# By the name of an array of a layer: the tensors, one for each entry of its first axis if there are
# several, and the tensor of such an entry.
_Parts = dict[str, tuple[tuple[str, ...], Callable[[np.ndarray], np.ndarray]]]
_KERNELS: _Parts = {
    "attn/qkv_einsum": (tuple(f"self_attn.{x}_proj" for x in "qkv"), _heads),
    "attn/q_einsum": (("self_attn.q_proj",), _heads),
    "attn/kv_einsum": (("self_attn.k_proj", "self_attn.v_proj"), _heads),
    "attn/attn_vec_einsum": (("self_attn.o_proj",), lambda x: x.reshape(-1, x.shape[-1]).T),
    "mlp/gating_einsum": (("mlp.gate_proj", "mlp.up_proj"), np.transpose),
    "mlp/linear": (("mlp.down_proj",), np.transpose),
}
_OUTPUTS = "attn/attn_vec_einsum", "mlp/linear"  # whose features are the width of the network


def _norms(**names: str) -> _Parts:
    return {f"{ours}/scale": ((theirs,), np.asarray) for ours, theirs in names.items()}


_GEMMA1 = _KERNELS | _norms(
    pre_attention_norm="input_layernorm", pre_ffw_norm="post_attention_layernorm"
)
_LATER = _KERNELS | _norms(
    pre_attention_norm="input_layernorm",
    post_attention_norm="post_attention_layernorm",
    pre_ffw_norm="pre_feedforward_layernorm",
    post_ffw_norm="post_feedforward_layernorm",
    **{"attn/_query_norm": "self_attn.q_norm", "attn/_key_norm": "self_attn.k_norm"},
)


class _Released(NamedTuple):
    """What the arrays of a released model do not say."""

    model_type: str
    positions: int
    window: int | None = None
    factor: float | None = None
    by_width: bool = False  # whether queries are scaled by the width over the number of heads


_IMAGES = "gemma3_text", 131_072, 1024, 8.0
_SIZES = (
    *("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads"),
    *("num_key_value_heads", "head_dim"),
)
_RELEASED = {
    (18, 2048, 16384, 8, 1, 256): _Released("gemma", 8192),
    (28, 3072, 24576, 16, 16, 256): _Released("gemma", 8192),
    (26, 2304, 9216, 8, 4, 256): _Released("gemma2", 8192, 4096),
    (42, 3584, 14336, 16, 8, 256): _Released("gemma2", 8192, 4096),
    (46, 4608, 36864, 32, 16, 128): _Released("gemma2", 8192, 4096, by_width=True),
    (18, 640, 2048, 4, 1, 256): _Released("gemma3_text", 32_768, 512),
    (26, 1152, 6912, 4, 1, 256): _Released("gemma3_text", 32_768, 512),
    (34, 2560, 10240, 8, 4, 256): _Released(*_IMAGES),
    (48, 3840, 15360, 16, 8, 256): _Released(*_IMAGES),
    (62, 5376, 21504, 32, 16, 128): _Released(*_IMAGES, by_width=True),
}


def find_gemma(directory: StoragePath) -> StoragePath | None:
    """The folder of such a checkpoint, which is the directory or one in it; None if there is none.

    Raises:
      CheckpointError: for several.
    """
    if any((directory / name).is_file() for name in (WEIGHTS, INDEX)):
        return None
    own = (directory / METADATA).is_file()
    if not own and find_t5x(directory):
        return None  # It may have a folder for each of many arrays.
    folders: list[Any] = [directory] if own else sorted(directory.glob("*"), key=str)
    found = [
        folder
        for folder in folders
        if (folder / METADATA).is_file() and _TABLE in map(_name, orbax_tree(folder)[1])
    ]
    if len(found) > 1:
        names = ", ".join(folder.name for folder in found)
        raise CheckpointError(f"{directory}: has several checkpoints, {names}; expected one's path")
    return found[0] if found else None


def read_gemma(directory: StoragePath, items: StoragePath) -> tuple[Settings, Tensors]:
    """The settings and the tensors of a checkpoint, as those of a directory of Hugging Face's.

    Args:
      directory: may have a ``config.json`` of ``transformers``, for sizes that were not released.
      items: the checkpoint, from ``find_gemma``.

    Raises:
      CheckpointError: in one line, without that file for other sizes than the released ones.
    """
    arrays = orbax_arrays(items, _name)
    layers, others = _layers(arrays)
    table = others.pop(_TABLE)
    found = {"model.embed_tokens.weight": Converted(table, (), table.shape, np.asarray)}
    if "final_norm/scale" in others:
        norm = others.pop("final_norm/scale")
        found["model.norm.weight"] = Converted(norm, (), norm.shape, np.asarray)
    parts = _LATER if any("post_attention_norm/scale" in layer for layer in layers) else _GEMMA1
    for i, layer in enumerate(layers):
        for part, (array, at) in layer.items():
            if part not in parts:
                others[array.name] = array
                continue
            for name, tensor in _tensors(part, array, at, parts, table.shape[1], items):
                found[f"model.layers.{i}.{name}"] = tensor
    if (directory / CONFIG).is_file():
        settings = Settings(directory / CONFIG)
    else:
        shapes = {name: tensor.shape for name, tensor in found.items()}
        heads = [layer[_OUTPUTS[0]][0] for layer in layers[:1] if _OUTPUTS[0] in layer]
        head_dim = heads[0].shape[-2] if heads else 0
        settings = Settings(items / METADATA, _settings(items, shapes, head_dim, len(layers)))
    return settings, ConvertedTensors(items, settings.path.name, found, others.values())


def _name(keys: Sequence[str]) -> str | None:
    """The name of an array, the same in all layouts; None for one that a text network lacks."""
    path = "/".join(keys).removeprefix("params/").removeprefix("transformer/").removesuffix("/w")
    return None if re.fullmatch(_OTHERS, path) else path


_Layer = dict[str, tuple[StoredArray, tuple[int, ...]]]


def _layers(arrays: Mapping[str, StoredArray]) -> tuple[list[_Layer], dict[str, StoredArray]]:
    """The parts of every layer, which are arrays or entries of stacked ones, and other arrays."""
    layers: dict[int, _Layer] = defaultdict(dict)
    others = {}
    pattern = r"(layer|stacked_layers/attention_type)_(\d+)/(.+)"
    places = {name: re.fullmatch(pattern, name) for name in arrays}
    kinds = {int(found[2]) for found in places.values() if found and found[1] != "layer"}
    for name, array in arrays.items():
        found = places[name]
        if found is None:
            others[name] = array
        elif found[1] == "layer":
            layers[int(found[2])][found[3]] = array, ()
        else:  # Layers of one kind of attention, which come in turns.
            for i in range(array.shape[0]):
                layers[i * len(kinds) + int(found[2])][found[3]] = array, (i,)
    return [layers[i] for i in range(max(layers, default=-1) + 1)], others


def _tensors(
    part: str,
    array: StoredArray,
    at: tuple[int, ...],
    parts: _Parts,
    width: int,
    items: StoragePath,
) -> Iterator[tuple[str, Converted]]:
    """The tensors of a part of a layer, by the ends of their names."""
    names, of = parts[part]
    shape = array.shape[len(at) :]
    if part == "mlp/gating_einsum":
        if shape[1:] == (width, width):
            raise CheckpointError(
                f"{items}: {array.name}: expected two sizes, which say whether it is transposed,"
                f" got shape {shape}"
            )
        of = of if shape[1] == width else np.asarray
    for i, name in enumerate(names):
        own, place = (shape[1:], (*at, i)) if len(names) > 1 else (shape, at)
        size = math.prod(own)
        tensor: tuple[int, ...] = size // width, width
        if part.endswith("_norm/scale"):
            tensor = (size,)
        elif part in _OUTPUTS:
            tensor = tensor[::-1]
        yield f"{name}.weight", Converted(array, place, tensor, of)


def _settings(
    items: StoragePath, shapes: Mapping[str, tuple[int, ...]], head_dim: int, count: int
) -> dict[str, Any]:
    """The contents of ``config.json`` for a released model, which its sizes name."""

    def rows(part: str) -> int:
        return shapes.get(f"model.layers.0.{part}_proj.weight", (0,))[0]

    vocab_size, width = shapes["model.embed_tokens.weight"]
    heads, shared = (rows(f"self_attn.{x}") // max(head_dim, 1) for x in "qk")
    sizes = count, width, rows("mlp.gate"), heads, shared, head_dim
    named = dict(zip(_SIZES, sizes, strict=True))
    if sizes not in _RELEASED:
        listed = ", ".join(f"{name}={size}" for name, size in named.items())
        raise CheckpointError(
            f"{items}: expected the sizes of a released Gemma, or {CONFIG} of transformers beside"
            f" the checkpoint, which has the settings that arrays do not say; got {listed}"
        )
    released = _RELEASED[sizes]
    factor = released.factor
    values = {
        "model_type": released.model_type,
        "vocab_size": vocab_size,
        **named,
        "max_position_embeddings": released.positions,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "rope_theta": 10_000.0,
    }
    if released.model_type != "gemma":
        values["sliding_window"] = released.window
        values["query_pre_attn_scalar"] = width // heads if released.by_width else head_dim
    if released.model_type == "gemma3_text":
        scaling = None if factor is None else {"rope_type": "linear", "factor": factor}
        values |= {"rope_theta": 1_000_000.0, "rope_local_base_freq": 10_000.0}
        values["rope_scaling"] = scaling
    return values

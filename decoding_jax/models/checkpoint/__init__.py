"""Reads and writes models in the layouts of Hugging Face (safetensors, never pickle) and T5X.

Checkpoints of MaxText and of the library ``gemma`` are read too.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from decoding_jax.models.bart import Bart
from decoding_jax.models.checkpoint import bart, gemma4, t5, t5gemma
from decoding_jax.models.checkpoint.directory import (
    CONFIG,
    GENERATION_CONFIG,
    WEIGHTS,
    CheckpointError,
    Settings,
    Tensors,
)
from decoding_jax.models.checkpoint.drafters import DrafterDirectory, load_drafter
from decoding_jax.models.checkpoint.families import FAMILIES, family_of
from decoding_jax.models.checkpoint.family import Family
from decoding_jax.models.checkpoint.gemma_library import find_gemma, read_gemma
from decoding_jax.models.checkpoint.lora import MergedTensors, base_and_adapter
from decoding_jax.models.checkpoint.maxtext import find_maxtext, read_maxtext
from decoding_jax.models.checkpoint.other_layouts import check_directory, check_layout
from decoding_jax.models.checkpoint.packed import packing_of
from decoding_jax.models.checkpoint.params import Layout, write_params
from decoding_jax.models.checkpoint.t5x import find_t5x, from_t5x, load_t5x, save_t5x, to_t5x
from decoding_jax.models.gemma4 import Gemma4
from decoding_jax.models.llama import Llama
from decoding_jax.models.quantized import check_floats, scheme_of
from decoding_jax.models.stack import with_separate_layers
from decoding_jax.models.t5 import T5, T5Decoder
from decoding_jax.models.t5gemma import T5Gemma
from decoding_jax.sharding import MeshError, as_mesh
from decoding_jax.storage import StoragePath, model_path, storage_path, write

__all__ = [
    "CheckpointError",
    "DrafterDirectory",
    "from_t5x",
    "load_drafter",
    "load_model",
    "load_t5x",
    "save_model",
    "save_t5x",
    "to_t5x",
]

_FAMILIES: dict[str, ModuleType | Family] = {
    **dict.fromkeys(bart.FAMILIES, bart),
    "gemma4": gemma4,
    "gemma4_text": gemma4,
    "longt5": t5,
    "mt5": t5,
    "switch_transformers": t5,
    "t5": t5,
    "t5gemma": t5gemma,
    "t5gemma2": t5gemma,
    "umt5": t5,
    **FAMILIES,
}
_STARTS = ("decoder_start_token_id", "bos_token_id")
_MODULES: dict[type, ModuleType] = {
    T5: t5,
    Gemma4: gemma4,
    Bart: bart,
    T5Gemma: t5gemma,
}


def load_model(
    directory: str | StoragePath,
    *,
    dtype: str = "float32",
    mesh: Mesh | Mapping[str, int] | None = None,
    scan_layers: bool = False,
    weights: str | None = None,
    lora: str | StoragePath | None = None,
) -> T5 | T5Decoder | Bart | T5Gemma | Llama:
    """Reads a model of a directory in Hugging Face's layout, T5X's, MaxText's or Gemma's own.

    Args:
      directory: a directory with ``config.json`` and either ``model.safetensors`` or shards with
        ``model.safetensors.index.json``; or a T5X checkpoint, or a directory with several (see
        ``load_t5x``); or a run of MaxText, or one of its checkpoints with ``config.yml`` beside it;
        or a Gemma of the library ``gemma``, such as Kaggle has, with ``config.json`` beside it if
        its size was not released.
        Or a URL of one, such as ``gs://bucket/model``, of which only the parts that are needed are
        read; or ``hf://organisation/model`` (see ``storage.model_path``).
      dtype: the dtype of weights, activations and cache, ``"float32"`` or ``"bfloat16"``. The
        stored weights are converted to it. ``"auto"`` is the one that most of them are stored in,
        and float32 for a model in float16.
      mesh: a mesh with the axes ``data`` and ``model``, or their sizes by name, on which the model
        is laid out (see ``decoding_jax.sharding``). Each device reads its own piece of every
        tensor, so no host needs memory for the whole model. With None, the model is on one device.
      scan_layers: whether one layer is compiled and scanned, which compiles a deep network as fast
        as a shallow one. It changes no token.
      weights: None for weights in ``dtype``; ``"int8"`` for kernels and token embeddings of 8 bits,
        with a scale for each output feature or token; or ``"int4"`` for kernels of layers of 4 bits
        in groups of 128 inputs that share a scale, and ``"int4-64"`` for groups of 64. They are
        rounded while they are read, and products read them narrow. ``dtype`` remains that of
        activations, cache and the other parameters. On a mesh, a process reads the whole of a
        kernel whose inputs are divided. A directory whose kernels are integers already, in the
        layout of compressed-tensors, GPTQ or AWQ, keeps them, with None.
      lora: the directory of an adapter of PEFT (``adapter_config.json`` and
        ``adapter_model.safetensors``), which is merged into the weights: LoRA of linear layers,
        also rank-stabilised or with DoRA's magnitudes. ``directory`` may also be that of an
        adapter that names its model's directory.

    Returns:
      The model of the family that ``model_type`` names; a ``GPT2``, a ``Gemma`` or a ``Gemma4`` is
      a ``Llama`` too.
      An encoder-decoder (``T5``, ``Bart``, ``T5Gemma``) has to be bound to inputs to decode.

    Raises:
      CheckpointError: in one line, for a file that is missing, truncated or pickled, a tensor
        that is missing, unexpected or of the wrong shape, an unknown family, or a setting that
        the networks do not support.
      ValueError: for an unknown ``dtype`` or ``weights``, a URL of an unknown scheme, or a mesh
        that does not divide the network.

    Example:
      >>> load_model("nowhere")
      Traceback (most recent call last):
      decoding_jax.models.checkpoint.directory.CheckpointError: nowhere: no such directory
    """
    _check_dtype(dtype, "float32", "bfloat16", "auto")
    if weights is not None:
        scheme_of(weights)
    if mesh is not None:
        mesh = as_mesh(mesh)
    directory = model_path("directory", directory)
    check_directory(directory)
    if lora is not None:
        lora = model_path("lora", lora)
        check_directory(lora)
    directory, lora = base_and_adapter(directory, lora)
    gemma = find_gemma(directory)
    is_other = gemma is None and not (directory / CONFIG).exists()
    if is_other and find_t5x(directory):
        _refuse_lora(directory, lora, "T5X")
        return load_t5x(directory, dtype=dtype, mesh=mesh, scan_layers=scan_layers, weights=weights)
    items = find_maxtext(directory) if is_other else None
    tensors: Tensors | None = None
    if gemma is not None:
        _refuse_lora(directory, lora, "the library gemma")
        settings, tensors = read_gemma(directory, gemma)
    elif items is None:
        check_layout(directory)
        settings = Settings(directory / CONFIG)
    else:
        _refuse_lora(directory, lora, "MaxText")
        settings, tensors = read_maxtext(directory, items)
    family = settings.get("model_type", str)
    if family not in _FAMILIES:
        error = settings.error("model_type", family, "one of " + ", ".join(sorted(_FAMILIES)))
        raise CheckpointError(f"{error}; decoding_jax.adapters makes a model of another network")
    packing = packing_of(settings)
    if packing is not None and weights is not None:
        raise CheckpointError(
            f"{settings.path}: weights: expected None with quantization_config, which says how the"
            f" weights are quantised, got {weights!r}"
        )
    if packing is not None and lora is not None:
        raise CheckpointError(
            f"{settings.path}: lora: expected None with quantization_config, since integers cannot"
            f" be merged with it, got {str(lora)!r}"
        )
    layout = Layout(mesh, scan_layers, weights, packing)
    try:
        if lora is not None:
            tensors = MergedTensors(directory, lora)
        elif tensors is None:
            tensors = Tensors(directory, () if packing is None else packing.weights)
        dtype = tensors.dtype() if dtype == "auto" else dtype
        model = _FAMILIES[family].read(settings, tensors, dtype, layout)
        if isinstance(tensors, MergedTensors):
            tensors.check_all_merged()
        return _started(model, settings, directory / GENERATION_CONFIG)
    except (CheckpointError, MeshError):
        raise
    except ValueError as e:  # from the config of a network
        raise CheckpointError(f"{settings.path}: {e}") from e


def _refuse_lora(directory: StoragePath, lora: StoragePath | None, layout: str) -> None:
    if lora is not None:
        raise CheckpointError(f"{directory}: lora: expected None with {layout}, got {str(lora)!r}")


def _started(model: Any, settings: Settings, path: StoragePath) -> Any:
    """An encoder-decoder with the start token of ``generation_config.json``.

    As in ``transformers``, that is the ``bos_token_id`` of a file without a
    ``decoder_start_token_id``. Where it has neither, ``config.json`` holds.

    Raises:
      CheckpointError: for an id beyond the vocabulary, or a list of several.
    """
    if not hasattr(model.config, "start_id"):
        return model
    name, given = _STARTS[0], model.config.start_id
    if path.is_file():
        file = Settings(path)
        for of_file in _STARTS[::-1]:
            if file.values.get(of_file) is not None:
                settings, name, given = file, of_file, file.values[of_file]
    start = given[0] if isinstance(given, list) and len(given) == 1 else given
    size = model.config.vocab_size
    if not isinstance(start, int) or isinstance(start, bool) or not 0 <= start < size:
        raise settings.error(name, given, f"one token id from 0 to {size - 1}")
    return dataclasses.replace(model, config=dataclasses.replace(model.config, start_id=start))


def save_model(
    model: T5 | Bart | T5Gemma | Llama,
    directory: str | StoragePath,
    *,
    dtype: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> None:
    """Writes a model as ``config.json`` and ``model.safetensors``, the layout of Hugging Face.

    Args:
      model: the model.
      directory: the directory, which is made if it does not exist. The two files are replaced.
      dtype: the dtype of the stored weights, ``"float32"`` or ``"bfloat16"``. By default the
        weights are not converted.
      settings: further entries of ``config.json``, such as ``eos_token_id``.

    Raises:
      ValueError: for a model or a ``dtype`` that this layout does not support, a quantised model,
        or a URL of an unknown scheme.
    """
    if dtype is not None:
        _check_dtype(dtype, "float32", "bfloat16")
    data = {family.model for family in FAMILIES.values()}
    if type(model) not in data.union(_MODULES):
        known = ", ".join(sorted(t.__name__ for t in data.union(_MODULES)))
        raise ValueError(f"model: expected one of {known}, got {type(model).__name__}")
    check_floats(model)
    model = with_separate_layers(model)
    module = _MODULES.get(type(model)) or family_of(model)
    values = {
        **module.settings_of(model.config),
        "dtype": dtype or _dtype_of(model),
        **(settings or {}),
    }
    directory = storage_path("directory", directory)
    directory.mkdir(parents=True, exist_ok=True)
    write_params(directory / WEIGHTS, module.table(model.config), model.params, dtype)
    text = json.dumps(values, indent=2, sort_keys=True)
    write(directory / CONFIG, [text, "\n"])


def _check_dtype(dtype: str, *known: str) -> None:
    if dtype not in known:
        listed = ", ".join(map(repr, known[:-1]))
        raise ValueError(f"dtype: expected {listed} or {known[-1]!r}, got {dtype!r}")


def _dtype_of(model: T5 | Bart | T5Gemma | Llama) -> str:
    return jnp.result_type(*jax.tree.leaves(model.params)).name

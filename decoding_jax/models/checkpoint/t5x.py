"""Reads and writes T5X checkpoints without T5X, and converts its trees of parameters.

A checkpoint is a directory ``checkpoint_<step>``. T5X's own checkpointer writes a msgpack file
``checkpoint`` in it, whose leaves are arrays or refer to zarr arrays beside the file. Orbax writes
a directory ``state`` in it. The arrays are read with ``tensorstore``, which the extra ``t5x``
installs.

The tree of T5X's ``examples/t5`` needs no conversion. ``examples/scalable_t5`` has a separate axis
of heads and biases in each layer, and by default stacks the layers of the encoder and of the
decoder along one axis of every leaf. ``examples/decoder_only`` has its tree under ``decoder``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import serialization, traverse_util
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from decoding_jax.base import Array
from decoding_jax.models.checkpoint.directory import CheckpointError, stored_dtype
from decoding_jax.models.checkpoint.params import placed
from decoding_jax.models.checkpoint.stored_arrays import (
    METADATA,
    check_dtype,
    open_array,
    orbax_arrays,
    tensorstore_for,
)
from decoding_jax.models.quantized import check_floats, quantize
from decoding_jax.models.stack import with_scanned_layers, with_separate_layers
from decoding_jax.models.t5 import T5, T5Config, T5Decoder, T5DecoderConfig
from decoding_jax.sharding import shardings
from decoding_jax.sharding.meshes import MODEL
from decoding_jax.storage import StoragePath, kvstore, storage_path

SCAN_AXIS = 1


def from_t5x(
    params: Mapping[str, Any],
    *,
    mlp_activations: tuple[str, ...] | None = None,
    bidirectional_prompt: bool = False,
    dtype: str = "float32",
    scan_axis: int = SCAN_AXIS,
    weights: str | None = None,
) -> T5 | T5Decoder:
    """A model with the parameters of a T5X network.

    The shape of the network follows from the shapes of the parameters, which may be traced.

    Args:
      params: the tree that T5X calls ``params`` or ``target``.
      mlp_activations: the activations of the feed-forward part. By default ``("relu",)`` without a
        gate, as in T5 1.0, and ``("gelu", "linear")`` with one, as in T5 1.1, mT5 and ByT5.
      bidirectional_prompt: see ``T5DecoderConfig``. It applies to a decoder without an encoder.
      dtype: the dtype of activations and of the cache. The parameters are not converted.
      scan_axis: T5X's ``param_scan_axis``.
      weights: as in ``load_model``. Traced parameters are rounded once, before a loop that decodes.

    Raises:
      ValueError: for the tree of another network, or for unknown ``weights``.
    """
    tree = _as_dicts(params)
    for stack in ("encoder", "decoder"):
        inner = tree.get(stack)
        if isinstance(inner, dict) and stack in inner:
            others = {k: v for k, v in inner.items() if k != stack}
            tree = {**tree, stack: {**others, **_unstacked_layers(inner[stack], scan_axis)}}
    try:
        tree = _flat_heads(tree)
        decoder = tree["decoder"]
        if "encoder" not in tree:
            config = _config(
                T5DecoderConfig,
                decoder,
                decoder["token_embedder"]["embedding"],
                mlp_activations,
                num_layers=_num_layers(decoder),
                bidirectional_prompt=bidirectional_prompt,
                dtype=dtype,
            )
            model: T5 | T5Decoder = T5Decoder(decoder, config)
        else:
            config = _config(
                T5Config,
                decoder,
                tree["token_embedder"]["embedding"],
                mlp_activations,
                num_encoder_layers=_num_layers(tree["encoder"]),
                num_decoder_layers=_num_layers(decoder),
                biases_per_layer="relpos_bias" in decoder["layers_0"],
                dtype=dtype,
            )
            model = T5(tree, config)
    except (KeyError, TypeError, AttributeError) as e:
        raise ValueError(f"params: expected those of a T5, got {sorted(tree)} ({e!r})") from e
    return model if weights is None else quantize(model, weights)


def to_t5x(
    model: T5 | T5Decoder, *, scan_layers: bool = False, scan_axis: int = SCAN_AXIS
) -> dict[str, Any]:
    """The parameters of a model as a tree of T5X.

    Args:
      model: a T5 or a T5Decoder.
      scan_layers: whether T5X's network scans its layers, as ``scalable_t5`` does by default.
      scan_axis: T5X's ``param_scan_axis``.

    Raises:
      ValueError: for scanned layers that share their biases, or for another model.
    """
    if isinstance(model, (T5, T5Decoder)):
        model = with_separate_layers(model)
    if isinstance(model, T5Decoder) and not scan_layers:
        return {"decoder": _as_dicts(model.params)}
    if not isinstance(model, T5):
        raise ValueError(
            f"model: expected a T5, or a T5Decoder unscanned, got {type(model).__name__}"
        )
    for name in ("num_experts", "local_radius"):
        if (value := getattr(model.config, name)) is not None:
            raise ValueError(f"model: expected one without {name}, got {value}")
    tree = _as_dicts(model.params)
    if model.config.biases_per_layer:
        tree = _with_heads(tree, model.config.num_heads)
    elif scan_layers:
        raise ValueError("scan_layers: expected a model with biases_per_layer, got True")
    if not scan_layers:
        return tree
    for stack in ("encoder", "decoder"):
        layers = [tree[stack][f"layers_{i}"] for i in range(_num_layers(tree[stack]))]
        others = {k: v for k, v in tree[stack].items() if not k.startswith("layers_")}
        stacked = jax.tree.map(lambda *x: jnp.stack(x, scan_axis), *layers)
        tree = {**tree, stack: {**others, stack: stacked}}
    return tree


def t5x_sharding(name: str, shape: tuple[int, ...], mesh: Mesh) -> NamedSharding:
    """Where an array of a T5X checkpoint is read to: its heads, features or vocabulary are sharded.

    The axes are those of T5X's layout, which may have one axis more for heads and one for layers.

    Args:
      name: the path of the array, joined with slashes.
      shape: its shape.
      mesh: a mesh with an axis ``model``, or without one.
    """
    size = mesh.shape.get(MODEL, 1)
    *_, module, layer, leaf = ("", "", *name.split("/"))
    spec: list[str | None] = [None] * len(shape)
    if leaf != "scale" and size > 1:
        with_heads = module.endswith("attention") and len(shape) > 2
        if leaf in ("embedding", "rel_embedding") or layer in ("wo", "out"):
            axis = 0
        else:
            axis = len(shape) - (2 if with_heads else 1)
        if shape[axis] % size == 0:
            spec[axis] = MODEL
    return NamedSharding(mesh, PartitionSpec(*spec))


def _as_dicts(tree: Any) -> Any:
    if isinstance(tree, Mapping):
        return {name: _as_dicts(value) for name, value in tree.items()}
    return tree


def _unstacked_layers(stacked: dict[str, Any], axis: int) -> dict[str, Any]:
    count = jax.tree.leaves(stacked)[0].shape[axis]

    def layer(i: int) -> Any:
        return jax.tree.map(lambda x: jnp.take(x, i, axis=axis), stacked)

    return {f"layers_{i}": layer(i) for i in range(count)}


def _num_layers(stack: Mapping[str, Any]) -> int:
    return sum(name.startswith("layers_") for name in stack)


def _map_attention(tree: dict[str, Any], query: Any, out: Any) -> dict[str, Any]:
    """Applies ``out`` to the output kernels of attention, and ``query`` to its other kernels."""

    def change(path: str, leaf: Array) -> Array:
        *_, module, name, _ = ("", "", *path.split("/"))
        if not module.endswith("attention"):
            return leaf
        return out(leaf) if name == "out" else query(leaf)

    flat = traverse_util.flatten_dict(tree, sep="/")
    return traverse_util.unflatten_dict({k: change(k, v) for k, v in flat.items()}, sep="/")


def _flat_heads(tree: dict[str, Any]) -> dict[str, Any]:
    return _map_attention(
        tree,
        lambda x: x.reshape(x.shape[0], -1),
        lambda x: x.reshape(-1, x.shape[-1]),
    )


def _with_heads(tree: dict[str, Any], heads: int) -> dict[str, Any]:
    return _map_attention(
        tree,
        lambda x: x.reshape(x.shape[0], heads, -1),
        lambda x: x.reshape(heads, -1, x.shape[-1]),
    )


def _config(kind: Any, decoder: dict[str, Any], embedding: Any, given: Any, **more: Any) -> Any:
    """The shape of a network, from the arrays of its decoder and its embedding table.

    Args:
      kind: the class of the config.
      decoder: the tree of the decoder.
      embedding: ``[V, D]``.
      given: the activations of the feed-forward part, or None.
      **more: further settings.
    """
    layer = decoder["layers_0"]
    biases = (layer if "relpos_bias" in layer else decoder)["relpos_bias"]["rel_embedding"]
    num_heads, num_buckets = biases.shape
    gates = sum(name.startswith("wi") for name in layer["mlp"])
    activations = given or (("relu",), ("gelu", "linear"))[gates - 1]
    if len(activations) != gates:
        raise ValueError(f"mlp_activations: expected {gates}, one for each gate, got {activations}")
    return kind(
        vocab_size=embedding.shape[0],
        emb_dim=embedding.shape[1],
        num_heads=num_heads,
        head_dim=layer["self_attention"]["query"]["kernel"].shape[1] // num_heads,
        mlp_dim=layer["mlp"]["wo"]["kernel"].shape[0],
        mlp_activations=tuple(activations),
        logits_via_embedding="logits_dense" not in decoder,
        num_buckets=num_buckets,
        **more,
    )


STATE = "checkpoint"
ORBAX = "state"
PLACEHOLDER = "PLACEHOLDER://"
VERSION = 3


def find_t5x(directory: str | StoragePath) -> StoragePath | None:
    """The directory itself if it is a T5X checkpoint, or the latest checkpoint in it, or None."""
    directory = storage_path("directory", directory)
    if (directory / STATE).is_file() or (directory / ORBAX / METADATA).is_file():
        return directory
    steps = {}
    for path in directory.glob("checkpoint_*"):
        number = path.name.removeprefix("checkpoint_")
        if number.isdigit() and find_t5x(path):
            steps[int(number)] = path
    return steps[max(steps)] if steps else None


def load_t5x(
    directory: str | StoragePath,
    *,
    dtype: str = "float32",
    mlp_activations: tuple[str, ...] | None = None,
    bidirectional_prompt: bool = False,
    scan_axis: int = SCAN_AXIS,
    mesh: Mesh | None = None,
    scan_layers: bool = False,
    weights: str | None = None,
) -> T5 | T5Decoder:
    """Reads a T5X checkpoint.

    Args:
      directory: a checkpoint, or a directory with several, of which the latest is read.
      dtype: as in ``load_model``.
      mlp_activations: as in ``from_t5x``. A checkpoint contains neither this nor the next two.
      bidirectional_prompt, scan_axis: as in ``from_t5x``.
      mesh: as in ``load_model``.
      scan_layers: as in ``load_model``, whichever form the checkpoint has.
      weights: as in ``load_model``. They are rounded when all are read.

    Returns:
      A T5Decoder, or a T5, which has to be bound to inputs before it decodes.

    Raises:
      CheckpointError: in one line, for a checkpoint or an array that is missing or broken, or a
        checkpoint of another network.
      ValueError: for a URL, or a mesh that does not divide the network.
    """
    directory = storage_path("directory", directory)
    if not directory.is_dir():
        raise CheckpointError(f"{directory}: no such directory")
    path = find_t5x(directory)
    if path is None:
        raise CheckpointError(f"{directory}: has neither {STATE}, {ORBAX} nor checkpoint_<step>")
    is_orbax = (path / ORBAX / METADATA).is_file()
    flat = orbax_arrays(path / ORBAX, _name) if is_orbax else _msgpack(path)

    if dtype == "auto":
        stored: list[Any] = [getattr(x, "store", x) for x in flat.values()]
        dtype = stored_dtype((x.dtype.name, math.prod(x.shape)) for x in stored)

    def convert(arrays: dict[str, Any]) -> T5 | T5Decoder:
        model = from_t5x(
            traverse_util.unflatten_dict(arrays, sep="/"),
            mlp_activations=mlp_activations,
            bidirectional_prompt=bidirectional_prompt,
            dtype=dtype,
            scan_axis=scan_axis,
            weights=weights,
        )
        return with_scanned_layers(model) if scan_layers else model

    shapes = {name: jax.ShapeDtypeStruct(x.shape, dtype) for name, x in flat.items()}
    try:
        expected = jax.eval_shape(convert, shapes)
    except ValueError as e:
        raise CheckpointError(f"{path}: {e}") from e
    _check_complete(expected, path)
    if mesh is None:
        return convert(
            {name: placed(x.__getitem__, x.shape, dtype, None) for name, x in flat.items()}
        )
    places = shardings(expected, mesh)
    arrays = {
        name: placed(x.__getitem__, x.shape, dtype, t5x_sharding(name, x.shape, mesh))
        for name, x in flat.items()
    }
    return jax.jit(convert, out_shardings=places)(arrays)


def save_t5x(
    model: T5 | T5Decoder,
    directory: str | StoragePath,
    *,
    step: int = 0,
    scan_layers: bool = False,
    scan_axis: int = SCAN_AXIS,
) -> StoragePath:
    """Writes ``checkpoint_<step>`` in the layout of T5X's own checkpointer.

    The checkpoint has no optimizer state.

    Args:
      model: a T5 or a T5Decoder.
      directory: the directory of checkpoints, which is made if it does not exist.
      step: the training step.
      scan_layers: as in ``to_t5x``.
      scan_axis: as in ``to_t5x``.

    Returns:
      The directory of the checkpoint.

    Raises:
      ValueError: for a model that T5X's layout does not support.
      CheckpointError: if the checkpoint exists already, or if ``tensorstore`` is not installed.
    """
    check_floats(model)
    tree = to_t5x(model, scan_layers=scan_layers, scan_axis=scan_axis)
    path = storage_path("directory", directory) / f"checkpoint_{step}"
    tensorstore = tensorstore_for(path)
    if path.exists():
        raise CheckpointError(f"{path}: is there already")
    path.mkdir(parents=True)
    target = {}
    for name, leaf in traverse_util.flatten_dict(tree, sep="/").items():
        place = f"target.{name.replace('/', '.')}"
        metadata = {
            "shape": list(leaf.shape),
            "chunks": [max(n, 1) for n in leaf.shape],
            "compressor": {"id": "gzip", "level": 1},
        }
        spec = {"driver": "zarr", "dtype": jnp.dtype(leaf.dtype).name, "metadata": metadata}
        where = {**spec, "kvstore": kvstore(path / place)}
        tensorstore.open(where, create=True).result().write(np.asarray(leaf)).result()
        target[name] = {**spec, "kvstore": {"driver": "file", "path": f"{place}/"}}
    state = {"step": np.int32(step), "param_states": {}}
    contents = {"state": state, "target": traverse_util.unflatten_dict(target, sep="/")}
    packed = serialization.msgpack_serialize({"version": VERSION, "optimizer": contents})
    (path / STATE).write_bytes(packed)
    return path


def _check_complete(model: T5 | T5Decoder, path: StoragePath) -> None:
    """Checks that a model has all parameters of its config.

    Raises:
      CheckpointError: for the first parameter that is missing or has another shape.
    """
    init: Any = type(model).init
    expected = jax.eval_shape(lambda: init(model.config, jax.random.key(0)).params)
    found = traverse_util.flatten_dict(model.params, sep="/")
    for name, leaf in sorted(traverse_util.flatten_dict(expected, sep="/").items()):
        if name not in found:
            raise CheckpointError(f"{path}: lacks {name}")
        if found[name].shape != leaf.shape:
            raise CheckpointError(
                f"{path}: {name}: expected {list(leaf.shape)}, got shape {list(found[name].shape)}"
            )


def _msgpack(path: StoragePath) -> dict[str, Any]:
    """The parameters that the file ``checkpoint`` contains or refers to."""
    try:
        contents = serialization.msgpack_restore((path / STATE).read_bytes())
        optimizer = contents.get("optimizer") or contents.get("_optimizer") or contents
        target = optimizer.get("target") or optimizer["params"]
    except Exception as e:  # msgpack's own exceptions have no common base
        raise CheckpointError(f"{path / STATE}: is no checkpoint of T5X ({e})") from e

    def is_leaf(_: Any, value: Any) -> bool:
        return "kvstore" in value

    flat = traverse_util.flatten_dict(target, is_leaf=is_leaf, sep="/")
    out: dict[str, Any] = {}
    for name, leaf in flat.items():
        if isinstance(leaf, dict):
            # On Google Cloud, `path` is an entry of the leaf itself.
            place = leaf["kvstore"].get("path") or leaf["path"]
        elif isinstance(leaf, str) and leaf.startswith(PLACEHOLDER):
            place = leaf.removeprefix(PLACEHOLDER)
        else:
            out[name] = np.asarray(leaf)
            check_dtype(name, path, out[name].dtype.name)
            continue
        folder = path / place
        if folder.resolve().parent != path.resolve():
            raise CheckpointError(
                f"{path}: {name}: expected a folder beside {STATE}, got {place!r}"
            )
        out[name] = open_array(name, folder, kvstore(folder))
    return out


def _name(keys: Sequence[str]) -> str | None:
    """The name of a parameter in an Orbax checkpoint, or None for another array."""
    if "target" in keys[:2]:
        return "/".join(keys[keys.index("target") + 1 :])
    return "/".join(keys[1:]) if keys[0] == "params" else None

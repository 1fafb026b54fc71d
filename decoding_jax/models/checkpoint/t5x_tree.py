"""Conversion between the parameter trees of T5X and those of ``models``.

The tree of T5X's ``examples/t5`` needs no conversion. ``examples/scalable_t5`` has a separate axis
of heads and biases in each layer, and by default stacks the layers of the encoder and of the
decoder along one axis of every leaf. ``examples/decoder_only`` has its tree under ``decoder``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import traverse_util
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from decoding_jax.base import Array
from decoding_jax.models.stack import with_separate_layers
from decoding_jax.models.t5 import T5
from decoding_jax.models.t5_decoder import T5Decoder, T5DecoderConfig
from decoding_jax.models.t5_layers import T5Config
from decoding_jax.ops.mesh import MODEL

SCAN_AXIS = 1


def from_t5x(
    params: Mapping[str, Any],
    *,
    mlp_activations: tuple[str, ...] | None = None,
    bidirectional_prompt: bool = False,
    dtype: str = "float32",
    scan_axis: int = SCAN_AXIS,
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

    Raises:
      ValueError: for the tree of another network.
    """
    tree = _as_dicts(params)
    for stack in ("encoder", "decoder"):
        inner = tree.get(stack)
        if isinstance(inner, dict) and stack in inner:
            others = {k: v for k, v in inner.items() if k != stack}
            tree = {**tree, stack: {**others, **_unstacked_layers(inner[stack], scan_axis)}}
    try:
        tree = _flat_heads(tree)
        if "encoder" in tree:
            return T5(tree, _t5_config(tree, mlp_activations, dtype))
        decoder = tree["decoder"]
        config = _decoder_config(decoder, mlp_activations, bidirectional_prompt, dtype)
        return T5Decoder(decoder, config)
    except (KeyError, TypeError, AttributeError) as e:
        raise ValueError(f"params: got {sorted(tree)} ({e!r}); takes those of a T5") from e


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
        raise ValueError(f"model: got {type(model).__name__}; takes a T5, or a T5Decoder unscanned")
    tree = _as_dicts(model.params)
    if model.config.biases_per_layer:
        tree = _with_heads(tree, model.config.num_heads)
    elif scan_layers:
        raise ValueError("scan_layers: got True; takes a model with biases_per_layer")
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


def _activations(mlp: Mapping[str, Any], given: tuple[str, ...] | None) -> tuple[str, ...]:
    gates = sum(name.startswith("wi") for name in mlp)
    names = given or (("relu",), ("gelu", "linear"))[gates - 1]
    if len(names) != gates:
        raise ValueError(f"mlp_activations: got {names}; takes {gates}, one for each gate")
    return tuple(names)


def _t5_config(tree: dict[str, Any], activations: Any, dtype: str) -> T5Config:
    decoder, encoder = tree["decoder"], tree["encoder"]
    layer = decoder["layers_0"]
    biases_per_layer = "relpos_bias" in layer
    biases = (layer if biases_per_layer else decoder)["relpos_bias"]["rel_embedding"]
    width = layer["self_attention"]["query"]["kernel"].shape[1]
    return T5Config(
        vocab_size=tree["token_embedder"]["embedding"].shape[0],
        emb_dim=tree["token_embedder"]["embedding"].shape[1],
        num_heads=biases.shape[0],
        head_dim=width // biases.shape[0],
        mlp_dim=layer["mlp"]["wo"]["kernel"].shape[0],
        num_encoder_layers=_num_layers(encoder),
        num_decoder_layers=_num_layers(decoder),
        mlp_activations=_activations(layer["mlp"], activations),
        logits_via_embedding="logits_dense" not in decoder,
        num_buckets=biases.shape[1],
        biases_per_layer=biases_per_layer,
        dtype=dtype,
    )


def _decoder_config(
    decoder: dict[str, Any], activations: Any, bidirectional: bool, dtype: str
) -> T5DecoderConfig:
    layer = decoder["layers_0"]
    vocab_size, emb_dim = decoder["token_embedder"]["embedding"].shape
    biases = decoder["relpos_bias"]["rel_embedding"]
    query = layer["self_attention"]["query"]["kernel"]
    return T5DecoderConfig(
        vocab_size=vocab_size,
        emb_dim=emb_dim,
        num_heads=biases.shape[0],
        head_dim=query.shape[1] // biases.shape[0],
        mlp_dim=layer["mlp"]["wo"]["kernel"].shape[0],
        num_layers=_num_layers(decoder),
        mlp_activations=_activations(layer["mlp"], activations),
        logits_via_embedding="logits_dense" not in decoder,
        bidirectional_prompt=bidirectional,
        num_buckets=biases.shape[1],
        dtype=dtype,
    )

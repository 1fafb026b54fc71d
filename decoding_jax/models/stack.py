"""Runs the layers of a network, one after another or as one layer that is scanned.

A program with scanned layers contains one layer, so that a deep network compiles as fast as a
shallow one. Parameters, keys and values are then stacked over layers: parameters along their first
axis, a prompt's keys as ``[B, N, H, P, d]``, and those of slots as ``[B, W, N, H, S, d]``.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from decoding_jax import fields
from decoding_jax.base import Array
from decoding_jax.models.caches import LAYER_AXIS

M = TypeVar("M")

RunLayer = Callable[[Any, Array, int | Array, Any, Any], tuple[Array, Any]]
"""``(layer, x, index, read, written) -> (x, new)``: runs one layer.

``index`` is the layer's index, and ``read`` the tuple of what it reads. ``written`` and ``new`` are
the arrays that the layer updates, before and after. Where layers are scanned, ``index`` is an int32
scalar, and these arrays are the stacked ones of all layers. Otherwise they are those of this layer.
"""


class _Scanned(NamedTuple):
    """The layer that is traced in a scan: its path, all layers' parameters, and its index."""

    path: tuple[str, ...]
    params: Any
    layer: Array


_SCANNED: contextvars.ContextVar[_Scanned | None] = contextvars.ContextVar("scanned", default=None)


@contextlib.contextmanager
def _scanning(layer: nn.Module, params: Any, index: Array) -> Iterator[None]:
    token = _SCANNED.set(_Scanned(layer.path, params, index))
    try:
        yield
    finally:
        _SCANNED.reset(token)


def of_all_layers(module: nn.Module, name: str) -> tuple[Any, Array] | None:
    """A parameter as it is stacked over all layers, and the index of the layer that is traced.

    What is not computed by XLA itself, such as a ragged product on a TPU, is given a copy of the
    layer that a scan cuts from the stack. It may take its part of the stack instead.

    Args:
      module: a module in a layer.
      name: the name of its parameter.

    Returns:
      None outside of a scan, and while parameters are initialized.
    """
    scanned = _SCANNED.get()
    if scanned is None or not scanned.params:
        return None
    found = scanned.params
    for part in (*module.path[len(scanned.path) :], name):
        found = found[part]
    return found, scanned.layer


def make_layers(
    layer: Callable[..., Any],
    config: Any,
    num_layers: int | None = None,
    **own: Callable[[int], Any],
) -> Any:
    """A list of layers, or the one layer that is scanned, for ``run_layers``.

    Args:
      layer: makes a layer of the config.
      config: the config of the network.
      num_layers: by default that of the config.
      **own: settings of a layer, each a function of its index.
    """
    count = config.num_layers if num_layers is None else num_layers
    made = [
        layer(config, **{name: of(i) for name, of in own.items()})
        for i in range(1 if config.scan_layers else count)
    ]
    return made[0] if config.scan_layers else made


def run_layers(
    layers: Any,
    run: RunLayer,
    x: Array,
    num_layers: int,
    *,
    read: tuple[Any, ...] = (),
    written: Any = None,
    features: Sequence[int] = (),
) -> tuple[Array, Any, tuple[Array, ...]]:
    """Runs all layers.

    Args:
      layers: from ``make_layers``.
      run: runs one layer.
      x: the input of the first layer.
      num_layers: N, the number of layers.
      read: what each layer reads. Each element is None, or has one entry for each layer, or arrays
        that are stacked along axis 1.
      written: None, or the arrays that each layer updates: one entry for each layer, or stacked.
      features: numbers of layers.

    Returns:
      The output of the last layer; the second results of all layers: one entry for each layer, or
      stacked; and for each of ``features``, the output of that many layers.
    """
    if isinstance(layers, Sequence):
        new, states = [], [x]
        for i, layer in enumerate(layers):
            *parts, held = [None if part is None else part[i] for part in (*read, written)]
            x, returned = run(layer, x, i, tuple(parts), held)
            new.append(returned)
            states.append(x)
        return x, tuple(new), tuple(states[count] for count in features)

    params = layers.variables.get("params")

    def body(layer: Any, carry: tuple[Array, Any, Any], index: Array, read: Any) -> Any:
        x, held, states = carry
        with _scanning(layer, params, index):
            x, new = run(layer, x, index, read, held)
        states = [
            jnp.where(index + 1 == n, x, kept) for n, kept in zip(features, states, strict=True)
        ]
        return ((x, None, states), new) if written is None else ((x, new, states), None)

    scan = nn.scan(
        body,
        variable_axes={"params": 0},
        split_rngs={"params": True, "dropout": True},
        in_axes=(0, LAYER_AXIS),
        out_axes=LAYER_AXIS,
        length=num_layers,
    )
    index = jnp.arange(num_layers, dtype=jnp.int32)
    (x, updated, states), new = scan(layers, (x, written, [x] * len(features)), index, read)
    return x, new if written is None else updated, tuple(states)


def stack_index(index: int | Array) -> Array | None:
    """The index of a layer in a stack, or None where each layer has arrays of its own."""
    return None if isinstance(index, int) else index


def with_scanned_layers(model: M) -> M:
    """The same model with its parameters stacked and its layers scanned.

    Args:
      model: a T5, or a decoder-only model.
    """
    return _converted(model, stack_layers, scan_layers=True)


def with_separate_layers(model: M) -> M:
    """The same model with parameters of each layer: the inverse of ``with_scanned_layers``."""
    return _converted(model, unstack_layers, scan_layers=False)


def _converted(model: Any, convert: Callable[[Any], Any], *, scan_layers: bool) -> Any:
    if model.config.scan_layers == scan_layers:
        return model
    config = dataclasses.replace(model.config, scan_layers=scan_layers)
    return dataclasses.replace(model, params=convert(model.params), config=config)


def stack_layers(params: Any) -> Any:
    """The parameters of ``layers_0``, ``layers_1``, ... stacked as ``layers``, wherever they are.

    Example:
      >>> stack_layers({"layers_0": {"scale": jnp.ones(2)}, "layers_1": {"scale": jnp.ones(2)}})
      {'layers': {'scale': Array([[1., 1.],
             [1., 1.]], dtype=float32)}}
    """
    if not isinstance(params, Mapping):
        return params
    params = {name: stack_layers(value) for name, value in params.items()}
    count = sum(name.startswith("layers_") for name in params)
    if not count:
        return params
    layers = [params.pop(f"layers_{i}") for i in range(count)]
    return {**params, "layers": jax.tree.map(lambda *x: jnp.stack(x), *layers)}


def unstack_layers(params: Any) -> Any:
    """The inverse of ``stack_layers``."""
    if not isinstance(params, Mapping):
        return params
    params = {name: unstack_layers(value) for name, value in params.items()}
    if "layers" not in params:
        return params
    stacked = params.pop("layers")
    count = jax.tree.leaves(stacked)[0].shape[0]
    layers = {f"layers_{i}": jax.tree.map(lambda x, i=i: x[i], stacked) for i in range(count)}
    return {**params, **layers}


def first_layers(params: Mapping[str, Any], num_layers: int, of: int) -> dict[str, Any]:
    """The parameters of a decoder without its layers from ``num_layers`` on.

    Args:
      params: the parameters, with one tree ``layers_0``, ``layers_1``, ... for each layer, or with
        one tree ``layers`` that is stacked.
      num_layers: the number of layers to keep.
      of: the number of layers in ``params``.

    Raises:
      ValueError: for a number outside 1 .. ``of``.
    """
    if not 1 <= num_layers <= of:
        raise fields.error("num_layers", f"1 to the network's {of}", num_layers)
    if "layers" in params:
        return {**params, "layers": jax.tree.map(lambda x: x[:num_layers], params["layers"])}
    dropped = {f"layers_{i}" for i in range(num_layers, of)}
    return {name: tree for name, tree in params.items() if name not in dropped}

"""The parameters of a model: the tensors that hold them, and where they lie on a mesh."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy
from flax import traverse_util
from jax.sharding import Mesh, NamedSharding

from decoding_jax.models.checkpoint.directory import Index, Tensors, all_of
from decoding_jax.models.checkpoint.packed import Packing
from decoding_jax.models.quantized import (
    QuantizedArray,
    Rounding,
    quantize,
    quantize_array,
    scheme_of,
)
from decoding_jax.models.stack import with_scanned_layers
from decoding_jax.sharding import fit_model_axis, shardings
from decoding_jax.storage import CloudPath, StoragePath

M = TypeVar("M")
_LAYERS = re.compile(r"\blayers/")


class Rows(NamedTuple):
    """The rows of a tensor that are a parameter's, where several parameters share a tensor.

    They are the entries of the parameter's last axis, which is the first one of a transposed
    tensor. Of another one, they are the columns.

    Attributes:
      groups: the number of groups that the rows are divided into, of one size.
      size: the number of rows of a group.
      first: the index of the parameter's first row in each group.
      last: the index after its last one.
    """

    groups: int
    size: int
    first: int
    last: int

    def of(self, tensor: np.ndarray) -> np.ndarray:
        """A view of the parameter's rows in a whole tensor, with an axis of groups."""
        return tensor.reshape(self.groups, self.size, *tensor.shape[1:])[:, self.first : self.last]

    def columns(self, kernel: np.ndarray) -> np.ndarray:
        """The parameter's columns of a kernel ``[D, F]``, which is stored as ``[F, D]``."""
        rows = self.of(np.asarray(kernel).T)
        return rows.reshape(-1, rows.shape[-1]).T

    def read(self, tensor: Any, index: Index) -> np.ndarray:
        """The piece of the parameter's rows at a tuple of slices."""
        rows, *rest = index
        count = self.groups * (self.last - self.first)
        if self.groups == 1:
            start, stop, _ = rows.indices(count)
            return tensor[(slice(self.first + start, self.first + stop), *rest)]
        whole = np.asarray(tensor[(slice(0, self.groups * self.size), *rest)])
        return self.of(whole).reshape(count, *whole.shape[1:])[rows]


class View(NamedTuple):
    """A parameter in a tensor with the same first axis.

    Attributes:
      shape: the shape of the tensor.
      of: returns the parameter as a view of the tensor, or of some entries of its first axis.
    """

    shape: tuple[int, ...]
    of: Callable[[np.ndarray], np.ndarray]


class Weight(NamedTuple):
    """The tensor of a parameter.

    Attributes:
      name: the name of the tensor.
      transposed: whether its two axes are transposed.
      rows: None, or the rows of the tensor that are the parameter.
      stacked: None, or the number of tensors that are stacked along the parameter's first axis. The
        name has braces in the place of the index of each.
      view: None, or how the parameter lies in a tensor that it shares, for which the other
        attributes do not serve.
    """

    name: str
    transposed: bool = False
    rows: Rows | None = None
    stacked: int | None = None
    view: View | None = None

    @property
    def names(self) -> list[str]:
        """The names of its tensors."""
        return (
            [self.name]
            if self.stacked is None
            else list(map(self.name.format, range(self.stacked)))
        )

    def stored_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the tensor of a parameter of this shape."""
        if self.rows is not None:
            shape = (*shape[:-1], self.rows.groups * self.rows.size)
            return shape[::-1] if self.transposed else shape
        if self.view is not None:
            return self.view.shape
        return shape[::-1] if self.transposed else shape


@functools.lru_cache(4)
def abstract(kind: type[M], config: Any) -> M:
    """The model of a config, with abstract parameters."""
    init: Any = kind.init  # type: ignore[attr-defined]
    return jax.eval_shape(lambda: init(config, jax.random.key(0)))


def named(kind: Any, config: Any, names: Mapping[str, str]) -> dict[str, Weight]:
    """The tensor of every parameter, whose name follows from the parameter's path.

    Args:
      kind: the class of the model.
      config: its config.
      names: patterns of one or several whole parts of a path, and what replaces them, in the order
        in which they are replaced. A part that is not replaced has one name here and there. A name
        with braces is that of each expert's tensor.
    """
    out = {}
    for path in traverse_util.flatten_dict(abstract(kind, config).params, sep="/"):
        name, _, leaf = path.rpartition("/")
        if leaf not in _LEAVES:
            name, leaf = path, ""
        for pattern, other in names.items():
            name = re.sub(rf"(?<![^/])(?:{pattern})(?![^/])", other, name)
        ending = f".{_LEAVES[leaf]}" if leaf else ""
        transposed = leaf in ("kernel", "rel_embedding")
        count = config.num_experts if "{}" in name else None
        out[path] = Weight(name.replace("/", ".") + ending, transposed, stacked=count)
    return out


_LEAVES = {"bias": "bias"} | dict.fromkeys(
    ("embedding", "kernel", "rel_embedding", "scale"), "weight"
)
"""The ends of names for those of paths."""

LAYER = {
    r"layers_(\d+)": r"layers.\1",
    "attention": "self_attn",
    "([qk])(uery|ey)_norm": r"\1_norm",
    "([qkvo])(uery|ey|alue|ut)": r"\1_proj",
    "mlp/(gate|up|down)": r"mlp.\1_proj",
}
"""The names of most layers with gates, but for those of norms."""

NORMS = {"pre_attention_norm": "input_layernorm", "pre_mlp_norm": "post_attention_layernorm"}
"""The names of the norms of most layers."""


class Layout(NamedTuple):
    """How a model is laid out where it is read to.

    Attributes:
      mesh: None for one device, or a mesh, on which each device reads its own pieces.
      scan_layers: whether parameters are stacked over layers.
      weights: None, or the name of the scheme by which they are quantised.
      packing: None, or how kernels are packed that the directory holds as integers.
    """

    mesh: Mesh | None = None
    scan_layers: bool = False
    weights: str | None = None
    packing: Packing | None = None

    def of(self, model: Any) -> Any:
        """An abstract model as it will be: with heads for the mesh, stacked, and quantised."""
        mesh, weights = self.mesh, self.weights
        if mesh is not None:
            model = jax.eval_shape(lambda m: fit_model_axis(m, mesh), model)
        if self.scan_layers:
            model = jax.eval_shape(with_scanned_layers, model)
        if weights is not None:
            model = jax.eval_shape(lambda m: quantize(m, weights), model)
        return model

    def rounding(self, path: str) -> Rounding | None:
        """How the parameter at a path is quantised, or None if it is not."""
        return None if self.weights is None else scheme_of(self.weights).rounding(path)


ONE_DEVICE = Layout()


def read_model(
    kind: type[M], config: Any, table: Mapping[str, Weight], tensors: Tensors, layout: Layout
) -> M:
    """Reads a model. On a mesh, each device reads its own piece of a parameter from the file.

    Args:
      kind: the class of the model, with ``init``.
      config: the shape of the stored network. The parameters are converted to its dtype.
      table: the tensor of each parameter, by the path of the parameter joined with slashes.
      tensors: the tensors of the directory.
      layout: where and how the model is laid out.

    Raises:
      ValueError: as ``sharding.shardings``.
    """
    tensors.expected = {name for weight in table.values() for name in weight.names}
    stored: Any = abstract(kind, config)  # type: ignore[arg-type]
    shapes: dict[str, Any] = traverse_util.flatten_dict(stored.params, sep="/")
    packing = layout.packing
    if packing is not None:
        for path, x in shapes.items():
            if packing.holds(tensors, table[path].name):
                shapes[path] = packing.abstract(x.shape, config.dtype)
        stored = kind(traverse_util.unflatten_dict(shapes, sep="/"), config)  # type: ignore[call-arg]
    model = layout.of(stored)
    places = flat_shardings(model, layout.mesh)

    def reader(path: str, shape: tuple[int, ...]) -> Callable[[Index], Any]:
        """Reads pieces of the parameter of one layer, which has this shape in the model."""
        weight, stored_shape = table[path], shapes[path].shape
        if packing is not None and isinstance(shapes[path], QuantizedArray):
            whole_shape = weight.stored_shape(stored_shape)[::-1]
            abstract = packing.abstract(whole_shape, config.dtype)
            whole_kernel: Any = packing.read(tensors, weight.name, abstract)
            if weight.rows is not None:
                whole_kernel = jax.tree.map(weight.rows.columns, whole_kernel)
            if f"{path.removesuffix('kernel')}bias" not in table:
                packing.check_bias(tensors, weight.name)
            read: Any = functools.partial(_piece, whole_kernel)
        elif weight.stacked is not None:
            shape_of_one = stored_shape[1:]
            pieces: list[Callable[[Index], Any]] = []
            for name in weight.names:
                tensor = tensors.slices(name, weight.stored_shape(shape_of_one))
                pieces.append(functools.partial(read_piece, tensor, weight))
            read = functools.partial(_stacked, pieces)
        else:
            tensor = tensors.slices(weight.name, weight.stored_shape(stored_shape))
            read = functools.partial(read_piece, tensor, weight)
        if layout.mesh is None or stored_shape == shape:
            return read
        # A few heads, which are repeated for the mesh.
        whole = {path: jax.tree.map(np.asarray, read(all_of(stored_shape)))}
        one = kind(traverse_util.unflatten_dict(whole, sep="/"), config)  # type: ignore[call-arg]
        fitted: Any = fit_model_axis(one, layout.mesh)
        fitted = traverse_util.flatten_dict(fitted.params, sep="/")[path]
        return functools.partial(_piece, jax.tree.map(np.asarray, fitted))

    flat: dict[str, Any] = {}
    for path, leaf in traverse_util.flatten_dict(model.params, sep="/").items():
        stacked = path not in shapes
        names = [path]
        if stacked:
            names = [_LAYERS.sub(f"layers_{i}/", path, 1) for i in range(leaf.shape[0])]
        readers: list[Callable[[Index], Any]] = [
            reader(name, leaf.shape[1:] if stacked else leaf.shape) for name in names
        ]
        rounding = layout.rounding(path)
        if rounding is not None:
            readers = [functools.partial(_rounded, r, rounding, config.dtype) for r in readers]
        read = functools.partial(_stacked, readers) if stacked else readers[0]
        if isinstance(leaf, QuantizedArray):
            axis = (0 if rounding is None else rounding.axis) + stacked
            flat[path] = _placed_quantized(read, leaf, axis, places.get(path))
        else:
            flat[path] = placed(read, leaf.shape, config.dtype, places.get(path))
    return kind(traverse_util.unflatten_dict(flat, sep="/"), model.config)  # type: ignore[call-arg]


def _piece(arrays: Any, index: Index) -> Any:
    """The piece of an array, or of the arrays of a quantised one, of which it has all inputs."""
    return jax.tree.map(lambda x: x[index], arrays)


def _stacked(readers: Sequence[Callable[[Index], Any]], index: Index) -> Any:
    layers = [read(index[1:]) for read in readers[index[0]]]
    return jax.tree.map(lambda *x: np.stack(x), *layers)


def _rounded(
    read: Callable[[Index], np.ndarray], rounding: Rounding, dtype: str, index: Index
) -> QuantizedArray:
    return quantize_array(np.asarray(read(index)), rounding, dtype)


def _placed_quantized(
    read: Callable[[Index], QuantizedArray], shape: QuantizedArray, axis: int, places: Any
) -> QuantizedArray:
    """A quantised array whose pieces are read where they lie.

    Args:
      read: returns the piece at a tuple of slices, which is whole along ``axis``.
      shape: the abstract arrays.
      axis: the axis that scales depend on: a device reads its piece of the others.
      places: their shardings, or None for one device.
    """
    pieces: dict[str, QuantizedArray] = {}

    def piece(index: Index) -> QuantizedArray:
        whole = (*index[:axis], slice(None), *index[axis + 1 :])
        if repr(whole) not in pieces:  # integers and scales of a piece are made together
            pieces[repr(whole)] = read(whole)
        return pieces[repr(whole)]

    def array(name: str) -> Any:
        leaf = getattr(shape, name)
        if leaf is None:
            return None
        if places is None:
            return jnp.asarray(getattr(piece(all_of(shape.shape)), name))

        def at(index: Index | None) -> Any:
            index = index or all_of(leaf.shape)
            return getattr(piece(index), name)[(*[slice(None)] * axis, index[axis])]

        return jax.make_array_from_callback(leaf.shape, getattr(places, name), at)

    return QuantizedArray(array("values"), array("scale"), array("zero"), shape.dtype)


def flat_shardings(model: Any, mesh: Mesh | None) -> dict[str, NamedSharding]:
    """Where each parameter lies on a mesh, by its path joined with slashes."""
    if mesh is None:
        return {}
    return traverse_util.flatten_dict(shardings(model, mesh).params, sep="/")


def placed(
    read: Callable[[Index], np.ndarray],
    shape: tuple[int, ...],
    dtype: str,
    sharding: NamedSharding | None,
) -> jax.Array:
    """An array whose pieces are read where they lie.

    Args:
      read: returns the piece at a tuple of slices.
      shape: the shape of the whole.
      dtype: its dtype.
      sharding: None for one device.
    """
    if sharding is None:
        return jnp.asarray(read(all_of(shape)), dtype)
    return jax.make_array_from_callback(
        shape, sharding, lambda index: np.asarray(read(index or ())).astype(jnp.dtype(dtype))
    )


def read_piece(stored: Any, weight: Weight, index: Index) -> np.ndarray:
    """A piece of a parameter, from the tensor that holds it."""
    if weight.rows is not None:
        tensor = stored if weight.transposed else _Transposed(stored)
        return weight.rows.read(tensor, index[::-1]).T
    if weight.view is not None:
        return weight.view.of(stored[index[:1]])[(slice(None), *index[1:])]
    if weight.transposed:
        return stored[index[::-1]].T
    return stored[index]


class _Transposed:
    """A tensor with its axes in the other order, of which parts are read."""

    def __init__(self, tensor: Any):
        self._tensor = tensor

    def __getitem__(self, index: Index) -> np.ndarray:
        return self._tensor[index[::-1]].T


def write_params(
    path: StoragePath, table: Mapping[str, Weight], params: Any, dtype: str | None
) -> None:
    """Writes the parameters to one safetensors file, under the names of ``table``."""
    tensors: dict[str, np.ndarray] = {}
    for key, leaf in traverse_util.flatten_dict(params, sep="/").items():
        weight = table[key]
        value = np.asarray(leaf if dtype is None else jnp.asarray(leaf, dtype))
        if weight.stacked is not None:
            for name, one in zip(weight.names, value, strict=True):
                tensors[name] = np.ascontiguousarray(one.T if weight.transposed else one)
            continue
        if weight.rows is not None or weight.view is not None:
            shape = weight.stored_shape(value.shape)
            whole = tensors.setdefault(weight.name, np.empty(shape, value.dtype))
        if weight.view is not None:
            weight.view.of(whole)[...] = value
            continue
        if weight.rows is not None:
            part = weight.rows.of(whole if weight.transposed else whole.T)
            part[...] = value.T.reshape(part.shape)
            continue
        value = value.T if weight.transposed else value.reshape(weight.stored_shape(value.shape))
        tensors[weight.name] = np.ascontiguousarray(value)
    if isinstance(path, CloudPath):
        path.write_bytes(safetensors.numpy.save(tensors, metadata={"format": "pt"}))
    else:
        safetensors.numpy.save_file(tensors, path, metadata={"format": "pt"})

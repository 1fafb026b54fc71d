"""The rows of a batch: the arguments of a strategy for them, over devices, and their steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from decoding_jax.base import Array, DecodeOutput, LanguageModel, Prompt
from decoding_jax.ops.mesh import DATA, mesh_of, put
from decoding_jax.pytrees import pytree
from decoding_jax.rows import row_arguments, take_rows, with_rows
from decoding_jax.text import bind_drafter, check_drafter, encode_batch


class RowInputs(NamedTuple):
    """What a strategy is called with for some rows.

    Attributes:
      model: the model, bound to the inputs of the rows if it takes any.
      prompt: the prompts of the rows.
      indices: uint32 ``[rows]``, the index of each row's input in the job.
      drafter: the drafter, bound as the model is, or None.
      settings: the settings that have one value for each row.
    """

    model: LanguageModel
    prompt: Prompt
    indices: Array
    drafter: Any
    settings: dict[str, Any]


MakeRows = Callable[[Sequence[int], int, int], RowInputs]
"""``(members, width, count) -> RowInputs``: the arguments of ``count`` rows with these inputs, by
number, padded to a width. The rows are filled up with copies of the first input."""


class RowSteps(NamedTuple):
    """Steps of a batch, and their sums over the rows that it has at each of them.

    Attributes:
      steps: the number of steps.
      taken: the steps of all rows, also of idle ones.
      used: those that a row took before its input had ended.
    """

    steps: int = 0
    taken: int = 0
    used: int = 0

    def plus(self, more: RowSteps) -> RowSteps:
        """The sum of two."""
        return RowSteps(*(a + b for a, b in zip(self, more, strict=True)))

    @property
    def waste(self) -> float | None:
        """The part in which a row had ended or held no input; None if no step was taken.

        This is the ``waste`` of ``summary.json`` and of the benchmark of the batch job.

        Example:
          >>> RowSteps(100, taken=8 * 100, used=700).waste
          0.125
        """
        return 1 - self.used / self.taken if self.taken else None


def info_of_rows(output: DecodeOutput) -> list[str]:
    """The names of the values of a strategy's ``info`` that have an axis of rows.

    The others are about the whole batch, such as the number of calls of the model.

    Args:
      output: the output of a batch that is not refilled, or its shapes.
    """
    info = output.info._asdict() if hasattr(output.info, "_asdict") else {}
    return [name for name, value in info.items() if getattr(value, "ndim", 0) > 0]


def keep_info(output: DecodeOutput, names: Sequence[str]) -> DecodeOutput:
    """The output with these values of ``info`` in a dictionary, or without any."""
    info = {name: getattr(output.info, name) for name in names}
    return output._replace(info=info or None)


@pytree
@dataclasses.dataclass(frozen=True)
class SplitInputs:
    """``RowInputs`` in two parts.

    Attributes:
      shared: the leaves that serve all rows, such as the weights of the model.
      given: the arrays ``[rows, ...]``.
      structure: the structure of the whole.
      is_given: whether each leaf of the whole is in ``given``.
    """

    shared: list[Any]
    given: list[Array]
    structure: Any = dataclasses.field(metadata={"static": True})
    is_given: tuple[bool, ...] = dataclasses.field(metadata={"static": True})

    def of(self, given: Sequence[Array]) -> RowInputs:
        """The inputs of the rows that were given these arrays."""
        shared, rows = iter(self.shared), iter(given)
        leaves = [next(rows) if is_given else next(shared) for is_given in self.is_given]
        return jax.tree.unflatten(self.structure, leaves)

    def without_rows(self) -> SplitInputs:
        """The shared part alone."""
        return dataclasses.replace(self, given=[])


class RowInputMaker:
    """Makes the arguments of a strategy for any inputs of a job.

    Args:
      model: an encoder-decoder, or a language model.
      strategy: the strategy.
      settings: its settings; any of them may have one value for each input of the job.
      drafter: the drafter, for a strategy that takes one.
      devices: the devices to spread rows over, for a model that is not on a mesh.

    Attributes:
      spread: the number of devices, or groups of devices, that rows are spread over.
    """

    def __init__(
        self,
        model: Any,
        strategy: Callable[..., DecodeOutput],
        settings: dict[str, Any],
        drafter: Any,
        devices: Sequence[jax.Device],
    ):
        mesh = mesh_of(model)
        drafter = check_drafter(strategy, drafter)
        self.spread = len(devices) if mesh is None else mesh.shape.get(DATA, 1)
        if mesh is not None:
            if drafter is not None and mesh_of(drafter) is None:
                drafter = _put(drafter, NamedSharding(mesh, PartitionSpec()))
        elif len(devices) > 1:
            mesh = Mesh(np.array(devices), (DATA,))
            model, drafter = _put((model, drafter), NamedSharding(mesh, PartitionSpec()))
        self._mesh = mesh
        self._model = model
        self._drafter = drafter
        self._arguments = row_arguments(strategy)
        self._num_inputs: int | None = None
        self._set(settings)

    def _set(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        per_input = {name: settings[name] for name in with_rows(settings, self._arguments)}
        self._per_input = {**per_input, "drafter": self._drafter}

    def expect(self, count: int, **settings: Any) -> None:
        """Sets the number of inputs of the job.

        Args:
          count: the number of inputs.
          **settings: settings with one value for each input, which replace those so far.

        Raises:
          ValueError: if a setting has one value for each input, but for a different number of
            inputs.
        """
        self._num_inputs = count
        self._set({**self._settings, **settings})
        take_rows({**self._settings, "drafter": self._drafter}, [0], count, self._arguments)

    def make(
        self, ids: Sequence[list[int]], index: Sequence[int], width: int, count: int
    ) -> RowInputs:
        """Makes the arguments of ``count`` rows.

        Args:
          ids: the tokens of 1 to ``count`` inputs. The rows are filled up with copies of the first.
          index: the index of each input in the job.
          width: the length that the tokens are padded to.
          count: the number of rows.
        """
        padding = count - len(ids)
        rows = np.asarray([*index, *[index[0]] * padding], np.uint32)
        padded = [*ids, *[ids[0]] * padding]
        bound_model, prompt = encode_batch(self._model, padded, width)
        settings = take_rows(self._per_input, rows, self._num_inputs, self._arguments)
        drafter = bind_drafter(settings.pop("drafter"), self._model, padded, width)
        made = RowInputs(bound_model, prompt, jnp.asarray(rows), drafter, settings)
        if self._mesh is None:
            return made
        is_spread = self.spread > 1 and count % self.spread == 0
        spec = PartitionSpec(DATA) if is_spread else PartitionSpec()
        return _put(made, NamedSharding(self._mesh, spec), self._shared())

    def split(self, inputs: RowInputs) -> SplitInputs:
        """Splits what ``make`` has returned."""
        leaves, structure = jax.tree.flatten(inputs)
        shared = self._shared()
        is_given = tuple(_is_array(x) and id(x) not in shared for x in leaves)
        pairs = list(zip(leaves, is_given, strict=True))
        rest, given = [x for x, g in pairs if not g], [x for x, g in pairs if g]
        return SplitInputs(rest, given, structure, is_given)

    def _shared(self) -> set[int]:
        # The leaves of the model and of the settings are shared by all rows. All other leaves were
        # made for these rows, and their leading axis is that of the rows.
        return {id(leaf) for leaf in jax.tree.leaves((self._model, self._per_input))}


def _put(tree: Any, sharding: NamedSharding, skip: set[int] | frozenset[int] = frozenset()) -> Any:
    """Moves the arrays of a tree to devices, except for leaves whose ``id`` is in ``skip``."""

    def move(leaf: Any) -> Any:
        stays = id(leaf) in skip or not _is_array(leaf)
        return leaf if stays else put(leaf, sharding)

    return jax.tree.map(move, tree)


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, (jax.Array, np.ndarray))

"""The arguments of a strategy for the rows of a batch, bound to their inputs and settings."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from decoding_jax import fields, rows
from decoding_jax.base import Array, LanguageModel, Prompt
from decoding_jax.batches.call import Call
from decoding_jax.batches.encode import bind_drafter, encode_batch
from decoding_jax.batches.widths import round_up
from decoding_jax.loop import forms
from decoding_jax.loop.strategy import RowCall
from decoding_jax.ops import random
from decoding_jax.pytrees import pytree
from decoding_jax.sharding import meshes


class RowInputs(NamedTuple):
    """What a strategy is called with for some rows.

    Attributes:
      strategy: the strategy with the settings of the rows, a ``Strategy`` or a ``Function``.
      model: the model, bound to the inputs of the rows if it takes any.
      prompt: the prompts of the rows.
      key_words: uint32 ``[rows, 2]``, the words of the rows' threefry keys; None for a strategy
        that draws nothing. Keys of a mesh of several processes can only be made of their words.
    """

    strategy: Any
    model: LanguageModel
    prompt: Prompt
    key_words: Any

    @property
    def call(self) -> RowCall:
        """The call of the strategy."""
        words = self.key_words
        keys = None if words is None else jax.random.wrap_key_data(words, impl="threefry2x32")
        return RowCall(self.strategy, self.model, self.prompt, keys)


MakeRows = Callable[[Sequence[int], int, int], RowInputs]
"""``(members, width, count) -> RowInputs``: the arguments of ``count`` rows with these inputs, by
number, padded to a width. The rows are filled up with copies of the first input."""


@pytree
@dataclasses.dataclass(frozen=True)
class SplitInputs:
    """``RowInputs`` in two parts: leaves that serve all rows, and arrays ``[rows, ...]``."""

    shared: list[Any]
    given: list[Array]
    structure: Any = fields.field(static=True)  # That of the whole.
    # Whether each leaf of the whole is in ``given``.
    is_given: tuple[bool, ...] = fields.field(static=True)

    def of(self, given: Sequence[Array]) -> RowCall:
        """The call for the rows that were given these arrays."""
        shared, of_rows = iter(self.shared), iter(given)
        leaves = [next(of_rows) if is_given else next(shared) for is_given in self.is_given]
        return jax.tree.unflatten(self.structure, leaves).call


class RowInputMaker:
    """Makes the arguments of a strategy for any of some inputs.

    Args:
      call: what is decoded, and how.
      devices: the devices to spread rows over, for a model that is not on a mesh. None leaves all
        arrays where they are.

    Attributes:
      spread: the number of devices, or groups of devices, that rows are spread over.
    """

    def __init__(self, call: Call, devices: Sequence[jax.Device] | None):
        model, drafter = call.model, call.drafter
        self._mesh = None if devices is None else meshes.mesh_of(model)
        self.spread = 1
        if self._mesh is not None:
            self.spread = self._mesh.shape.get(meshes.DATA, 1)
            if drafter is not None and meshes.mesh_of(drafter) is None:
                drafter = _put(drafter, NamedSharding(self._mesh, PartitionSpec()))
        elif devices is not None and len(devices) > 1:
            self.spread = len(devices)
            self._mesh = Mesh(np.array(devices), (meshes.DATA,))
            everywhere = NamedSharding(self._mesh, PartitionSpec())
            model, drafter = _put((model, drafter), everywhere)
        self._model, self._drafter = model, drafter
        key = call.key if call.strategy.draws else None
        self._key = None if key is None else random.counter_keys(key)
        self._count: int | None = None
        self._find_settings(call.strategy)

    def expect(self, count: int | None, strategy: Any = None) -> None:
        """Sets the number of inputs, and a strategy with their settings in place of that so far.

        Without a number, settings are not searched for one value for each input.

        Raises:
          ValueError: if a setting has one value for each input, but for a different number of
            inputs.
        """
        self._count = count
        if strategy is not None:
            self._find_settings(strategy)
        of_inputs = {**self._of_inputs, "model": self._model}
        rows.take_rows(of_inputs, [0], count, self._declared)

    def settings_of_inputs(self) -> list[str]:
        """The names of the settings, and of what the model declares, with one value for each."""
        return rows.with_rows({**self._of_inputs, "model": self._model}, self._declared)

    def _find_settings(self, strategy: Any) -> None:
        """Finds the settings that may have one value for each input, of which ``make`` takes some.

        A function gets all others as they are, so that it may read them while it is traced.
        """
        if isinstance(strategy, forms.Function):
            self._declared = {}
            own = strategy.settings
            of_inputs = {name: own[name] for name in rows.with_rows(own)}
            shared = {name: value for name, value in own.items() if name not in of_inputs}
            function = functools.partial(strategy.function, **shared)
            strategy = dataclasses.replace(strategy, function=function)
        else:
            self._declared = rows.row_arguments(type(strategy))
            of_inputs = {
                f.name: getattr(strategy, f.name)
                for f in dataclasses.fields(strategy)
                if not f.metadata.get("static")
            }
        self._strategy, self._of_inputs = strategy, {**of_inputs, "drafter": self._drafter}

    def key_words(self, index: Sequence[int]) -> np.ndarray | None:
        """The words of the keys of inputs, uint32 ``[N, 2]``, or None."""
        if self._key is None:
            return None
        if self._key.ndim:
            return np.asarray(jax.random.key_data(self._key))[np.asarray(index, np.int64)]
        padded = np.zeros(round_up(len(index)), np.uint32)
        padded[: len(index)] = index
        return np.asarray(_folded(self._key, padded))[: len(index)]

    def make(
        self,
        ids: Sequence[list[int]],
        index: Sequence[int],
        key_words: np.ndarray | None,
        width: int,
        count: int,
    ) -> RowInputs:
        """Makes the arguments of ``count`` rows.

        Args:
          ids: the tokens of 1 to ``count`` inputs. The rows are filled up with copies of the first.
          index: the place of each input among the settings with a value for each.
          key_words: those of each input.
          width: the length that the tokens are padded to.
          count: the number of rows.
        """
        of_rows = [*range(len(ids)), *[0] * (count - len(ids))]
        padded = [ids[i] for i in of_rows]
        numbers = np.asarray(index)[of_rows]
        model = rows.take_rows({"model": self._model}, numbers, self._count)["model"]
        bound_model, prompt = encode_batch(model, padded, width)
        taken = rows.take_rows(self._of_inputs, numbers, self._count, self._declared)
        taken["drafter"] = bind_drafter(taken["drafter"], self._model, padded, width)
        words = None if key_words is None else key_words[of_rows]
        made = RowInputs(self._with(taken), bound_model, prompt, words)
        if self._mesh is None:
            return made
        is_spread = self.spread > 1 and count % self.spread == 0
        spec = PartitionSpec(meshes.DATA) if is_spread else PartitionSpec()
        return _put(made, NamedSharding(self._mesh, spec), self._shared())

    def _with(self, taken: dict[str, Any]) -> Any:
        """The strategy with the settings of some inputs, which were checked with those of all."""
        drafter = taken.pop("drafter")
        if isinstance(self._strategy, forms.Function):
            return dataclasses.replace(self._strategy, drafter=drafter, settings=taken)
        if drafter is not None:
            field = self._strategy.__dataclass_fields__["drafter"]
            taken["drafter"] = fields.checked(field, drafter)
        return forms.with_values(self._strategy, **taken)

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
        return {id(leaf) for leaf in jax.tree.leaves((self._model, self._of_inputs))}


def _put(tree: Any, sharding: NamedSharding, skip: Collection[int] = ()) -> Any:
    """Moves the arrays of a tree to devices, except for leaves whose ``id`` is in ``skip``."""

    def move(leaf: Any) -> Any:
        stays = id(leaf) in skip or not _is_array(leaf)
        return leaf if stays else meshes.put(leaf, sharding)

    return jax.tree.map(move, tree)


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, (jax.Array, np.ndarray))


@jax.jit
def _folded(key: Array, index: Array) -> Array:
    """The words of a key that is folded with each index."""
    return jax.random.key_data(jax.vmap(jax.random.fold_in, (None, 0))(key, index))

"""The arguments of a strategy for the rows of a batch: tokens, models, drafters and settings."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from decoding_jax import fields, rows, suggestions
from decoding_jax.base import Array, DecodeOutput, LanguageModel, Prompt
from decoding_jax.batches.widths import round_up
from decoding_jax.loop.refill import Call
from decoding_jax.models.checkpoint import DrafterDirectory
from decoding_jax.models.encoder_decoder import EncoderDecoder
from decoding_jax.ops import random
from decoding_jax.pytrees import pytree
from decoding_jax.sharding import meshes
from decoding_jax.strategies.speculative.drafters import bind_to_inputs


def encode_batch(
    model: EncoderDecoder | LanguageModel, ids: Sequence[Sequence[int]], width: int
) -> tuple[LanguageModel, Prompt]:
    """Pads B token lists, and makes the language model and the prompts to decode from.

    Args:
      model: an encoder-decoder, which is bound to the lists as its inputs; or a language model,
        whose prompts they are.
      ids: B non-empty token lists of at most ``width`` tokens.
      width: the length that all lists are padded to.

    Returns:
      The language model, and a prompt of B rows.

    Raises:
      ValueError: if a list is empty or longer than ``width``.
    """
    if isinstance(model, EncoderDecoder):
        # The ids are checked where they are, before they are moved: reading them back would wait
        # for what the device is busy with.
        on_host = _padded(ids, width)
        source, length = (jnp.asarray(x) for x in on_host)
        bound = dataclasses.replace(model.bind(*on_host), source=source, source_length=length)
        return bound, bound.start_prompt()
    return model, pad_tokens(ids, width)


def pad_tokens(ids: Sequence[Sequence[int]], width: int) -> Prompt:
    """Token lists as arrays: tokens int32 ``[B, width]``, right-padded, and lengths int32 ``[B]``.

    Raises:
      ValueError: if a list is empty or longer than ``width``.

    Example:
      >>> pad_tokens([[5, 6], [7]], 3).tokens.tolist()
      [[5, 6, 0], [7, 0, 0]]
    """
    return Prompt(*(jnp.asarray(x) for x in _padded(ids, width)))


def _padded(ids: Sequence[Sequence[int]], width: int) -> tuple[Any, Any]:
    """``pad_tokens``, as NumPy arrays."""
    tokens = np.zeros((len(ids), width), np.int32)
    length = np.asarray([len(x) for x in ids], np.int32)
    for i, row in enumerate(ids):
        if not 1 <= len(row) <= width:
            raise ValueError(f"ids: expected 1 to {width} tokens, got {len(row)} in row {i}")
        tokens[i, : len(row)] = row
    return tokens, length


def check_drafter(strategy: Callable[..., Any], drafter: Any) -> Any:
    """Checks that a drafter was given if, and only if, the strategy takes one.

    Returns:
      The drafter; the model if ``drafter`` is a pair ``(model, tokenizer)``, as from ``load``.

    Raises:
      ValueError: if the strategy takes a drafter and got none, if it takes none and got one, or if
        the drafter is a string or a class.
    """
    takes_drafter = "drafter" in inspect.signature(strategy).parameters
    if takes_drafter and drafter is None:
        raise fields.error("drafter", "a model or a drafter for this strategy", None)
    if not takes_drafter and drafter is not None:
        raise ValueError(
            f"drafter: expected none for this strategy, got a {type(drafter).__name__}"
        )
    if isinstance(drafter, (str, type)):
        expected = "a model, such as load gives, or strategies.speculative.PromptLookup()"
        raise fields.error("drafter", expected, drafter)
    return drafter[0] if isinstance(drafter, tuple) else drafter


def read_drafter(drafter: Any, model: Any) -> Any:
    """The drafter for this model, if it is a directory that is not read yet, or else as it is."""
    return drafter.read(model) if isinstance(drafter, DrafterDirectory) else drafter


def bind_drafter(drafter: Any, model: Any, ids: Sequence[Sequence[int]], width: int) -> Any:
    """The drafter for one batch of texts.

    An encoder-decoder is always bound to the texts, which are its inputs. Any other drafter that
    uses encoder inputs, such as a ``PromptLookup`` without a source, is bound to them if the target
    is an encoder-decoder. Other drafters, and None, are returned unchanged.

    Args:
      drafter: a drafter, a model from ``load``, or None.
      model: the target, from ``load``.
      ids: B token lists, none of them empty.
      width: the length that all lists are padded to.

    Raises:
      ValueError: if a list is empty or longer than ``width``.
    """
    if isinstance(drafter, EncoderDecoder) or (
        isinstance(model, EncoderDecoder) and drafter is not None
    ):
        return bind_to_inputs(drafter, *pad_tokens(ids, width))
    return drafter


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
    def call(self) -> Call:
        """The call of the strategy."""
        words = self.key_words
        keys = None if words is None else jax.random.wrap_key_data(words, impl="threefry2x32")
        return Call(self.strategy, self.model, self.prompt, keys)


@pytree
@dataclasses.dataclass(frozen=True)
class Function:
    """A function of a user's own, in the place of a ``Strategy``.

    Attributes:
      drafter: the drafter, or None.
      settings: the settings that have one value for each row.
      function: takes the arguments of a strategy. All settings that rows share are bound to it.
    """

    drafter: Any
    settings: dict[str, Any]
    function: Callable[..., DecodeOutput] = fields.field(static=True)

    def __call__(self, model: LanguageModel, prompt: Prompt, key: Array | None) -> DecodeOutput:
        drafters = () if self.drafter is None else (self.drafter,)
        keys = () if key is None else (key,)
        return self.function(model, *drafters, prompt, *keys, **self.settings)


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

    def of(self, given: Sequence[Array]) -> Call:
        """The call for the rows that were given these arrays."""
        shared, of_rows = iter(self.shared), iter(given)
        leaves = [next(of_rows) if is_given else next(shared) for is_given in self.is_given]
        return jax.tree.unflatten(self.structure, leaves).call

    def without_rows(self) -> SplitInputs:
        """The shared part alone."""
        return dataclasses.replace(self, given=[])


class RowInputMaker:
    """Makes the arguments of a strategy for any of some inputs.

    Args:
      model: an encoder-decoder, or a language model.
      function: the function of the strategy.
      settings: its settings; any of them may have one value for each input.
      drafter: the drafter, for a strategy that takes one.
      key: a typed key, which is folded with the index of each input; or one for each input.
      devices: the devices to spread rows over, for a model that is not on a mesh.

    Attributes:
      spread: the number of devices, or groups of devices, that rows are spread over.

    Raises:
      ValueError: for a setting that is missing, unknown or invalid.
    """

    def __init__(
        self,
        model: Any,
        function: Callable[..., DecodeOutput],
        settings: dict[str, Any],
        drafter: Any,
        key: Array | None,
        devices: Sequence[jax.Device],
    ):
        drafter = check_drafter(function, drafter)
        self._mesh = meshes.mesh_of(model)
        if self._mesh is not None:
            self.spread = self._mesh.shape.get(meshes.DATA, 1)
            if drafter is not None and meshes.mesh_of(drafter) is None:
                drafter = _put(drafter, NamedSharding(self._mesh, PartitionSpec()))
        else:
            self.spread = len(devices)
            if len(devices) > 1:
                self._mesh = Mesh(np.array(devices), (meshes.DATA,))
                everywhere = NamedSharding(self._mesh, PartitionSpec())
                model, drafter = _put((model, drafter), everywhere)
        self._model = model
        self._drafter = drafter
        self._function = function
        takes_key = "key" in inspect.signature(function).parameters
        self._key = random.counter_keys(key) if takes_key and key is not None else None
        self._settings = settings
        self._count: int | None = None
        self._make_strategy()

    def expect(self, count: int | None, **settings: Any) -> None:
        """Sets the number of inputs, and settings with a value for each, in place of those so far.

        Without a number, settings are not searched for one value for each input.

        Raises:
          ValueError: if a setting has one value for each input, but for a different number of
            inputs.
        """
        self._count = count
        self._settings = {**self._settings, **settings}
        self._make_strategy()
        of_inputs = {**self._of_inputs, "model": self._model}
        rows.take_rows(of_inputs, [0], count, self._declared)

    def _make_strategy(self) -> None:
        """Makes the strategy with the settings of all inputs, of which ``make`` takes some."""
        made: Any
        kind = getattr(self._function, "strategy", None)
        drafter = bind_drafter(self._drafter, self._model, [[0]], 1)
        if kind is None:
            self._declared = rows.row_arguments(self._function)
            names = rows.with_rows(self._settings, self._declared)
            of_inputs = {name: self._settings[name] for name in names}
            rest = {k: v for k, v in self._settings.items() if k not in of_inputs}
            made = Function(drafter, of_inputs, functools.partial(self._function, **rest))
        else:
            elsewhere = ("model", "prompt", "key", "drafter")
            suggestions.check_function(self._function, self._settings, given_elsewhere=elsewhere)
            drafters = {} if drafter is None else {"drafter": drafter}
            made = kind(**self._settings, **drafters)
            self._declared = rows.row_arguments(type(made))
            of_inputs = {
                f.name: getattr(made, f.name)
                for f in dataclasses.fields(made)
                if not f.metadata.get("static")
            }
        self._strategy, self._of_inputs = made, {**of_inputs, "drafter": self._drafter}

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
        if isinstance(self._strategy, Function):
            return dataclasses.replace(self._strategy, drafter=drafter, settings=taken)
        made = copy.copy(self._strategy)
        if drafter is not None:
            field = self._strategy.__dataclass_fields__["drafter"]
            taken["drafter"] = fields.checked(field, drafter)
        for name, value in taken.items():
            object.__setattr__(made, name, value)
        return made

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

"""The arguments of a strategy for the rows of a batch: tokens, models, drafters and settings."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from decoding_jax import fields, rows
from decoding_jax.base import Array, DecodeOutput, LanguageModel, Prompt
from decoding_jax.models.encoder_decoder import EncoderDecoder
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
        raise fields.error("drafter", "a model, such as load gives", drafter)
    return drafter[0] if isinstance(drafter, tuple) else drafter


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


@pytree
@dataclasses.dataclass(frozen=True)
class SplitInputs:
    """``RowInputs`` in two parts: leaves that serve all rows, and arrays ``[rows, ...]``."""

    shared: list[Any]
    given: list[Array]
    structure: Any = fields.field(static=True)  # That of the whole.
    # Whether each leaf of the whole is in ``given``.
    is_given: tuple[bool, ...] = fields.field(static=True)

    def of(self, given: Sequence[Array]) -> RowInputs:
        """The inputs of the rows that were given these arrays."""
        shared, of_rows = iter(self.shared), iter(given)
        leaves = [next(of_rows) if is_given else next(shared) for is_given in self.is_given]
        return jax.tree.unflatten(self.structure, leaves)

    def without_rows(self) -> SplitInputs:
        """The shared part alone."""
        return dataclasses.replace(self, given=[])


class RowInputMaker:
    """Makes the arguments of a strategy for any of some inputs.

    Args:
      model: an encoder-decoder, or a language model.
      strategy: the strategy.
      settings: its settings; any of them may have one value for each input.
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
        drafter = check_drafter(strategy, drafter)
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
        self._declared = rows.row_arguments(strategy)
        self._settings = settings
        self._count: int | None = None
        self._find_settings_of_rows()

    def expect(self, count: int, **settings: Any) -> None:
        """Sets the number of inputs, and settings with a value for each, in place of those so far.

        Raises:
          ValueError: if a setting has one value for each input, but for a different number of
            inputs.
        """
        self._count = count
        self._settings = {**self._settings, **settings}
        self._find_settings_of_rows()
        given = {**self._settings, "drafter": self._drafter}
        rows.take_rows(given, [0], count, self._declared)

    def _find_settings_of_rows(self) -> None:
        names = rows.with_rows(self._settings, self._declared)
        of_rows = {name: self._settings[name] for name in names}
        self._of_rows = {**of_rows, "drafter": self._drafter}

    def make(
        self, ids: Sequence[list[int]], index: Sequence[int], width: int, count: int
    ) -> RowInputs:
        """Makes the arguments of ``count`` rows.

        Args:
          ids: the tokens of 1 to ``count`` inputs. The rows are filled up with copies of the first.
          index: the index of each input.
          width: the length that the tokens are padded to.
          count: the number of rows.
        """
        padding = count - len(ids)
        indices = np.asarray([*index, *[index[0]] * padding], np.uint32)
        padded = [*ids, *[ids[0]] * padding]
        bound_model, prompt = encode_batch(self._model, padded, width)
        settings = rows.take_rows(self._of_rows, indices, self._count, self._declared)
        drafter = bind_drafter(settings.pop("drafter"), self._model, padded, width)
        made = RowInputs(bound_model, prompt, jnp.asarray(indices), drafter, settings)
        if self._mesh is None:
            return made
        is_spread = self.spread > 1 and count % self.spread == 0
        spec = PartitionSpec(meshes.DATA) if is_spread else PartitionSpec()
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
        return {id(leaf) for leaf in jax.tree.leaves((self._model, self._of_rows))}


def _put(tree: Any, sharding: NamedSharding, skip: Collection[int] = ()) -> Any:
    """Moves the arrays of a tree to devices, except for leaves whose ``id`` is in ``skip``."""

    def move(leaf: Any) -> Any:
        stays = id(leaf) in skip or not _is_array(leaf)
        return leaf if stays else meshes.put(leaf, sharding)

    return jax.tree.map(move, tree)


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, (jax.Array, np.ndarray))

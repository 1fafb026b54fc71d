"""The protocols of drafters, which return distributions, and of guessers, which return tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax.numpy as jnp

from decoding_jax import fields
from decoding_jax.base import Array, Prompt
from decoding_jax.ops.gather import gather_position


class Path(NamedTuple):
    """The prompt and the new tokens of every lane before a block is drafted.

    Attributes:
      prompt: B prompts.
      tokens: int32 ``[B, W, L]``, new tokens.
      length: int32 ``[B, W]``, the number of new tokens.
    """

    prompt: Prompt
    tokens: Array
    length: Array

    def tokens_from(self, start: Array, count: int) -> Array:
        """New tokens by their places: int32 ``[B, W, count]``.

        Args:
          start: int32 ``[B, W]``, the place of the first of them. A place outside 0 to L - 1 counts
            as the nearest one inside.
          count: how many.
        """
        place = start[..., None] + jnp.arange(count, dtype=jnp.int32)[None, None]
        place = jnp.clip(place, 0, self.tokens.shape[-1] - 1)
        return jnp.take_along_axis(self.tokens, place, axis=-1)


@runtime_checkable
class Drafter(Protocol):
    """Returns the distribution of one drafted token after another. A drafter is a pytree.

    The same transform is applied to each distribution as to the target's, and the verifier draws
    the drafted token from it. A drafter that uses the inputs of an encoder-decoder also has
    ``bind``; see ``SupportsBind``. It may also have ``greedy`` and ``min_confidence`` (see
    ``ModelDrafter``), ``one_call`` (True if ``begin`` does all the work of a block) and ``widens``
    (see ``loop.Strategy``). A guesser may have ``bind`` and ``widens``.
    """

    @property
    def vocab_size(self) -> int: ...

    def init(self, prompt: Prompt, *, lanes: int, max_new_tokens: int) -> Any:
        """Makes the drafter's state, such as a cache of the prompt."""
        ...

    def begin(self, state: Any, path: Path) -> tuple[Array, Any]:
        """The logits ``[B, W, V]`` after the path. Earlier drafts are discarded."""
        ...

    def next(self, state: Any, token: Array, slot: Array) -> tuple[Array, Any]:
        """The logits ``[B, W, V]`` after one more drafted token.

        Args:
          state: from ``begin`` or an earlier ``next``.
          token: int32 ``[B, W]``.
          slot: int32 ``[B, W]``, the number of new tokens before it. From ``max_new_tokens`` on,
            the result is not used.
        """
        ...


@runtime_checkable
class TreeDrafter(Drafter, Protocol):
    """A ``Drafter`` that continues C drafts of every lane, or C nodes of a tree, in one call."""

    def open(self, prompt: Prompt, *, lanes: int, slots: int, **sizes: Any) -> Any:
        """Makes the drafter's state, with this many slots in every lane.

        Args:
          prompt: B prompts.
          lanes: W.
          slots: for the longest sequence and for K C tokens.
          **sizes: ``max_new_tokens``; and as for ``FeatureDrafter.init``, with ``num_drafts``.
        """
        ...

    def next_level(
        self,
        state: Any,
        tokens: Array,
        start: Array,
        visible: Array,
        parent: Array | None = None,
    ) -> tuple[Array, Any]:
        """The logits ``[B, W, C, V]`` after one more token of each draft.

        Args:
          state: from ``begin`` or an earlier ``next_level``.
          tokens: int32 ``[B, W, C]``.
          start: int32 ``[B, W]``, the slot of the first of them.
          visible: bool ``[B, W, C, S]``, the slots of each token's ancestors.
          parent: int32 ``[B, W, C]``, from 0 to C - 1, the token of the call before that each of
            these continues, in a dynamic tree; or None, where token c continues token c.
        """
        ...

    def keep(self, state: Any, source: Array, start: Array) -> Any:
        """Moves an accepted path to the slots where a chain would have written it.

        The arguments are those of ``SupportsKeep.keep``.
        """
        ...


@runtime_checkable
class FeatureDrafter(Protocol):
    """A ``Drafter`` that reads hidden states of the target, a model with ``with_features``.

    It has the attributes and methods of a ``Drafter`` too.

    Attributes:
      feature_layers: the layers, as for ``SupportsFeatures.with_features``.
    """

    @property
    def feature_layers(self) -> tuple[int, ...]: ...

    def init(
        self,
        prompt: Prompt,
        *,
        lanes: int,
        max_new_tokens: int,
        max_draft_tokens: int,
        features: tuple[Array, ...],
    ) -> Any:
        """Makes the drafter's state.

        Args:
          prompt: B prompts.
          lanes: W.
          max_new_tokens: L.
          max_draft_tokens: K.
          features: for each layer, the target's hidden states ``[B, 1, P, D]`` of the prompts.
        """
        ...

    def observe(self, state: Any, features: tuple[Array, ...], start: Array) -> Any:
        """Takes in hidden states of the target after a block, before the next ``begin``.

        Args:
          state: from ``begin`` or ``next``.
          features: for each layer, ``[B, W, K + 1, D]``, of the last token before the block and of
            K after it. As many of these as were accepted are part of the path of ``begin``; the
            others are undefined.
          start: int32 ``[B, W]``, the number of new tokens before the first of them.
        """
        ...


@runtime_checkable
class KeyDrafter(Protocol):
    """A ``FeatureDrafter`` that reads keys and values of the target, a model with ``shared_keys``.

    It has no cache of its own. What it reads is the target's cache as it is before the block, so
    its state holds none of it, and nothing has to be rewound.
    """

    def with_keys(self, keys: Any) -> Any:
        """The drafter that reads these in ``begin``, ``next`` and ``next_level``.

        Args:
          keys: what ``SupportsSharedKeys.shared_keys`` returns before a block.
        """
        ...


def confidence() -> Any:
    """Declares the ``min_confidence`` of a drafter."""
    expected = "a probability from 0 to 1"
    return fields.static_number(expected, lambda x: 0 <= x <= 1, default=0.0)


class HeadDrafter:
    """What drafters by a head have in common.

    Attributes:
      open, next_level: see ``TreeDrafter``.
      head: the network, of a drafter with one.
    """

    open: Callable[..., Any]
    next_level: Callable[..., Any]
    head: Any

    def __post_init__(self) -> None:
        fields.check(self)

    @property
    def feature_layers(self) -> tuple[int, ...]:
        return self.head.feature_layers

    @property
    def widens(self) -> bool:
        return getattr(self.head, "widens", False)

    def init(self, prompt: Prompt, *, lanes: int, max_new_tokens: int, **sizes: Any) -> Any:
        """See ``FeatureDrafter.init``. Every lane has a slot for each new token but the last."""
        return self.open(prompt, lanes=lanes, slots=max(max_new_tokens - 1, 1), **sizes)

    def next(self, state: Any, token: Array, slot: Array) -> tuple[Array, Any]:
        """See ``Drafter.next``: a level of one token."""
        logits, state = self.next_level(state, token[..., None], slot, None)
        return logits[:, :, 0], state

    def keep(self, state: Any, source: Array, start: Array) -> Any:
        """See ``TreeDrafter.keep``. Moves nothing: ``begin`` writes all accepted entries anew."""
        return state


def first_states(
    states: Array, prompt: Prompt, lanes: int, num_drafts: int, max_draft_tokens: int
) -> tuple[Array, Array, Array]:
    """The ``state``, ``seen`` and ``start`` of a head's state before the first block.

    Args:
      states: ``[B, 1, P, D']``, of the tokens of the prompts.
      prompt: B prompts.
      lanes: W.
      num_drafts: C.
      max_draft_tokens: K.

    Returns:
      The state of the prompt's last token for each draft, ``[B, W, C, D']``, and for each token of
      a block, ``[B, W, K + 1, D']``; and zeros, int32 ``[B, W]``.
    """
    last = gather_position(states, prompt.length[:, None] - 1)[:, :, None]
    shape, width = (states.shape[0], lanes), states.shape[-1]
    return (
        jnp.broadcast_to(last, (*shape, num_drafts, width)),
        jnp.broadcast_to(last, (*shape, max_draft_tokens + 1, width)),
        jnp.zeros(shape, jnp.int32),
    )


@runtime_checkable
class Guesser(Protocol):
    """Proposes all tokens of a draft at once, with certainty. A guesser is a pytree."""

    def init(self, prompt: Prompt, *, lanes: int, max_new_tokens: int) -> Any:
        """Makes the guesser's state."""
        ...

    def guess(self, state: Any, path: Path, count: int) -> Array:
        """Up to ``count`` tokens after the path: int32 ``[B, W, count]``, padded with -1.

        The draft ends before the first token outside the vocabulary.
        """
        ...


@runtime_checkable
class SupportsBind(Protocol):
    """A drafter that uses the encoder inputs of the target."""

    def bind(self, tokens: Array, length: Array) -> Any:
        """The drafter for these inputs.

        Args:
          tokens: int32 ``[B, P]``, right-padded.
          length: int32 ``[B]``.
        """
        ...

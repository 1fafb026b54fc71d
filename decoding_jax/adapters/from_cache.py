"""A language model from a user's cache that grows by the tokens it is fed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from decoding_jax import fields
from decoding_jax.adapters import functions, paths
from decoding_jax.adapters.paths import Tokens
from decoding_jax.base import Array, ModelOutput
from decoding_jax.loop.model_calls import check_same_cache
from decoding_jax.pytrees import pytree


class LaneCache(NamedTuple):
    """A user's caches, one for each lane, and the tokens that they hold.

    Attributes:
      inner: the leaves of the user's cache, each ``[B, W, ...]``.
      tokens: the tokens by slot.
    """

    inner: Any
    tokens: Tokens


@pytree
@dataclasses.dataclass(frozen=True)
class CachedModel:
    """A language model with one of the user's caches for each lane. See ``from_cache``."""

    parameters: Any
    init: Callable[..., Any] = fields.field(static=True)
    step: Callable[..., Any] = fields.field(static=True)
    vocab_size: int = fields.field(static=True)
    max_positions: int | None = fields.field(static=True)
    positions: bool = fields.field(static=True)
    blocks: bool = fields.field(static=True)

    @property
    def ragged(self) -> bool:
        return self.positions

    @property
    def rewinds(self) -> bool:
        return self.positions

    @property
    def tree(self) -> bool:
        return False

    def prefill(
        self, tokens: Array, length: Array, *, lanes: int, slots: int, with_hidden: bool = False
    ) -> tuple[ModelOutput, LaneCache]:
        """See ``base.LanguageModel.prefill``. There are no hidden states."""
        held = paths.start_tokens(tokens, length, lanes, slots)
        batch, width = held.prompt.shape
        # Made at once for each row and not copied to it, so that every array may be updated.
        inner = jax.tree.map(jnp.asarray, self.init(width + slots))
        inner = jax.tree.map(lambda x: jnp.broadcast_to(x, (batch, *jnp.shape(x))), inner)
        prompt = paths.clean_paths(held.prompt, held.length, self.vocab_size)
        logits, inner = jax.vmap(self._feed_prompt)(inner, prompt, held.length)
        inner = jax.tree.map(lambda x: jnp.repeat(x[:, None], lanes, 1), inner)
        return ModelOutput(logits[:, None, None]), LaneCache(inner, held)

    def extend(
        self,
        cache: LaneCache,
        tokens: Array,
        start: Array | int,
        visible: Array | None = None,
        position: Array | None = None,
    ) -> tuple[ModelOutput, LaneCache]:
        """See ``base.LanguageModel.extend``.

        Raises:
          ValueError: for a tree; and without ``positions``, for lanes at different slots.
        """
        tokens, start = jnp.asarray(tokens, jnp.int32), jnp.asarray(start, jnp.int32)
        if visible is not None:
            raise ValueError(
                "visible: expected None, as a model from from_cache decodes no trees, got a mask"
            )
        if start.ndim and not self.positions:
            raise ValueError(
                "start: expected a scalar, as the step of this model takes no positions "
                f"(from_cache(..., positions=True)), got shape {list(start.shape)}"
            )
        inner, held = cache
        start = jnp.broadcast_to(start, tokens.shape[:2]) if start.ndim else start
        place = jnp.broadcast_to(held.length[:, None] + start, tokens.shape[:2])
        held = paths.add(held, tokens, start, place[..., None])
        if not self.positions:
            tokens = paths.clean_paths(
                tokens, jnp.full_like(place, tokens.shape[2]), self.vocab_size
            )
            logits, inner = jax.vmap(jax.vmap(self._feed))(inner, tokens, place)
            return ModelOutput(logits), LaneCache(inner, held)
        # A block begins where all of it has room. The places that it covers before or after the
        # new tokens are fed the tokens that they hold, which changes nothing.
        size = held.prompt.shape[1] + held.slots.shape[-1]
        count = min(tokens.shape[2], size)
        first = jnp.clip(place, 0, size - count)
        offset = jnp.arange(count, dtype=jnp.int32)[None, None]
        chains = paths.chains(held, size)
        chains = paths.clean_paths(chains, jnp.full_like(place, size), self.vocab_size)
        block = jnp.take_along_axis(chains, first[..., None] + offset, -1)
        logits, inner = jax.vmap(jax.vmap(self._feed))(inner, block, first)
        index = (place - first)[..., None] + jnp.arange(tokens.shape[2], dtype=jnp.int32)[
            None, None
        ]
        logits = jnp.take_along_axis(logits, jnp.clip(index, 0, count - 1)[..., None], 2)
        return ModelOutput(logits), LaneCache(inner, held)

    def select(self, cache: LaneCache, lanes: Array) -> LaneCache:
        """See ``base.SupportsSelect.select``."""
        inner = jax.tree.map(lambda x: paths.gather_lanes(x, lanes), cache.inner)
        return LaneCache(inner, paths.select(cache.tokens, lanes))

    def _feed_prompt(self, inner: Any, prompt: Array, length: Array) -> tuple[Array, Any]:
        """The logits ``[V]`` after a prompt ``[P]``, and the cache with it."""
        if self.blocks:
            logits, inner = self._call(inner, prompt, jnp.int32(0))
            return logits[length - 1], inner

        def body(carry: Any, token_and_place: Any) -> tuple[Any, None]:
            inner, logits = carry
            token, place = token_and_place
            new_logits, new = self._call(inner, token[None], place)
            # With positions, later tokens overwrite the padding. Without, it is never taken in.
            if not self.positions:
                new = jax.tree.map(lambda n, o: jnp.where(place < length, n, o), new, inner)
            return (new, jnp.where(place == length - 1, new_logits[0], logits)), None

        places = jnp.arange(prompt.shape[0], dtype=jnp.int32)
        empty = jnp.zeros(self.vocab_size, jnp.float32)
        (inner, logits), _ = lax.scan(body, (inner, empty), (prompt, places))
        return logits, inner

    def _feed(self, inner: Any, tokens: Array, place: Array) -> tuple[Array, Any]:
        """Feeds one lane tokens ``[T]`` at ``place`` and following; logits ``[T, V]``."""
        if self.blocks or tokens.shape[0] == 1:
            return self._call(inner, tokens, place)

        def body(inner: Any, token_and_place: Any) -> tuple[Any, Array]:
            token, place = token_and_place
            logits, inner = self._call(inner, token[None], place)
            return inner, logits[0]

        places = place + jnp.arange(tokens.shape[0], dtype=jnp.int32)
        inner, logits = lax.scan(body, inner, (tokens, places))
        return logits, inner

    def _call(self, inner: Any, tokens: Array, place: Array) -> tuple[Array, Any]:
        """One call of ``step``, whose results are checked; float32 logits ``[T, V]``."""
        args: list[Any] = [inner, tokens[None]]
        if self.parameters is not None:
            args.insert(0, self.parameters)
        if self.positions:
            args.append((place + jnp.arange(tokens.shape[0], dtype=jnp.int32))[None])
        # Objects that hold arrays, such as Flax's variables, may be changed in place: they are new.
        returned = self.step(*jax.tree.map(lambda x: x, args))
        if not isinstance(returned, tuple) or len(returned) != 2:
            got = type(returned).__name__
            raise ValueError(f"step: expected a pair (logits [1, T, V], cache), got a {got}")
        logits, new = returned
        functions.check_logits("step", logits, ("[1, T, V]", (1, tokens.shape[0], self.vocab_size)))
        new = jax.tree.map(jnp.asarray, new)
        check_same_cache(inner, new, "step", "it")
        return logits[0].astype(jnp.float32), new


def from_cache(
    init: Callable[[int], Any],
    step: Callable[..., Any],
    vocab_size: int,
    *,
    parameters: Any = None,
    max_positions: int | None = None,
    positions: bool = False,
    blocks: bool = False,
) -> CachedModel:
    """Makes a language model from a cache of your own, to which tokens are appended.

    ``init`` and ``step`` are written for one sequence, a batch of 1, and are mapped over rows and
    lanes by ``jax.vmap``; the cache may be any pytree of arrays in any layout. The state of a
    recurrent network is such a cache too.

    What runs: ``greedy``, ``sample``, ``arithmetic_sample`` and all beam searches, which copy lanes
    at every step; with ``positions``, also ``speculative_sample`` with one draft, as target or
    draft. Best-first search and several drafts need a tree, whose tokens see some slots and not
    others; they refuse the model in one line. ``from_logits`` decodes trees.

    Args:
      init: ``size -> cache``, an empty cache for ``size`` tokens, the prompt included.
      step: ``(cache, tokens int32 [1, T]) -> (logits [1, T, V], cache)``, which appends the tokens
        and returns the logits after each, and a cache of the same structure, shapes and dtypes.
        T is 1 unless ``blocks``.
      vocab_size: V.
      parameters: a pytree of arrays, such as weights, that the step takes as its first argument,
        ``(parameters, cache, tokens)``. Other parameters do not compile again.
      max_positions: the largest ``size``, or None.
      positions: whether the step also takes ``position`` int32 ``[1, T]``, consecutive numbers
        counted from the prompt's first token, ``(cache, tokens, position)``. It then writes each
        token at its position, whatever has been written there or after, and a token sees positions
        up to its own alone. Without, tokens can only be appended.
      blocks: whether the step takes several tokens at once, a whole prompt for example; needs
        ``positions``. Without, tokens are fed one after another.

    Returns:
      A ``LanguageModel`` with ``select``, without ``tree``, and ``ragged`` if ``positions``. It is
      a pytree whose leaves are the parameters.

    Raises:
      ValueError: for functions that do not take these arguments, a size below 1, or ``blocks``
        without ``positions``. Logits or caches of another shape are refused when a strategy is
        traced.

    Example:
      >>> from decoding_jax import Prompt, sample
      >>> def init(size):
      ...     return jnp.zeros(5)
      >>> def step(weights, state, tokens):
      ...     state = jnp.tanh(state @ weights + jax.nn.one_hot(tokens[0, 0], 5))
      ...     return state[None, None], state
      >>> weights = jax.random.normal(jax.random.key(0), (5, 5))
      >>> model = from_cache(init, step, 5, parameters=weights)
      >>> prompt = Prompt(jnp.array([[1, 2], [3, 0]]), jnp.array([2, 1]))
      >>> output = sample(model, prompt, jax.random.key(1), num_samples=3, max_new_tokens=4)
      >>> output.tokens.shape
      (2, 3, 4)
    """
    functions.check_function("init", init, ("size",))
    leading = () if parameters is None else ("parameters",)
    last = ("position",) if positions else ()
    functions.check_function("step", step, (*leading, "cache", "tokens", *last))
    vocab_size = fields.as_count("vocab_size", vocab_size)
    if max_positions is not None:
        max_positions = fields.as_count("max_positions", max_positions)
    if blocks and not positions:
        raise ValueError(
            "blocks: expected False, since the padding of a prompt that was appended cannot be"
            " taken back, got True with positions=False"
        )
    return CachedModel(parameters, init, step, vocab_size, max_positions, positions, blocks)

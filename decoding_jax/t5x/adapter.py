"""The adapter that makes a language model of T5X's ``tokens_to_logits``.

T5X gives a decode function a cache and a function that feeds one token per row. This serves every
strategy whose lanes are all at the same slot. It serves no strategy that needs trees or hidden
states. Where the ``cache_index`` of the network is a scalar, all rows are at the same position.

Forced tokens are those of T5X's ``inputs``, and those that a callback writes at later positions. A
forced token is fed to the network and returned, but not chosen. The logits before it allow no other
token, so it adds no score, draws nothing and consumes no arithmetic code.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax.core import FrozenDict, freeze

from decoding_jax import fields
from decoding_jax.base import Array, ModelOutput, Prompt
from decoding_jax.pytrees import pytree
from decoding_jax.t5x import network_cache


@pytree
@dataclasses.dataclass(frozen=True)
class DecodingState:
    """The argument of T5X's ``tokens_to_logits``, with T5X's field names.

    The number of rows is B times ``num_decodes``.

    Attributes:
      cur_index: int32 ``[rows]``, the position of ``cur_token``.
      sequences: int32 ``[rows, L]``: the start token, the tokens so far and later forced ones.
      cur_token: int32 ``[rows, 1]``, the token to feed.
      cache: the cache of the network.
    """

    cur_index: Array
    sequences: Array
    cur_token: Array
    cache: Any


@pytree
@dataclasses.dataclass(frozen=True)
class T5XAdapter:
    """A ``LanguageModel`` with ``select`` over T5X's ``(tokens_to_logits, cache)``.

    ``tokens_to_logits`` usually closes over traced values. Use such a model with the undecorated
    functions of ``decoding_jax.strategies``, never with the compiled ones.

    A non-zero token of ``inputs`` at a later position is forced. The
    strategy is shown another token instead of a forced end token, which does not end the sequence,
    and instead of a forced token outside the vocabulary. The network is fed the forced token.

    Attributes:
      cache: the cache of the network for B rows, which contains each prompt but its last token.
      inputs: int32 ``[B, L]``: the start token 0, the prompt, and zeros.
      initial_index: int32 ``[B]``, the position of the last token of each prompt; None if the cache
        is empty and the prompt is fed token by token.
      eos_id: int32, a scalar or ``[E]``, the end tokens.
      tokens_to_logits: T5X's function.
      num_decodes: W; ``tokens_to_logits`` takes B times W rows.
      cache_offset: 1 if layers are scanned, otherwise 0.
      callbacks: T5X's callbacks (``callbacks.Callbacks``), or None.
      show_prompt: whether a strategy is shown forced tokens unchanged, or token 0 instead.
    """

    cache: Any
    inputs: Array
    initial_index: Array | None
    eos_id: Array
    tokens_to_logits: Callable[..., tuple[Array, Any]] = fields.field(static=True)
    num_decodes: int = fields.field(static=True)
    cache_offset: int = fields.field(static=True, default=0)
    callbacks: Any = fields.field(static=True, default=None)
    show_prompt: bool = fields.field(static=True, default=True)

    tree = False
    max_positions = None

    @property
    def ragged(self) -> bool:
        """Whether rows may be at different positions: the cache has an index for every row."""
        return network_cache.has_vector_index(self.cache, self.cache_offset)

    @functools.cached_property
    def vocab_size(self) -> int:
        prompt = self.start_prompt()
        shapes = jax.eval_shape(
            lambda: self.prefill(*prompt, lanes=self.num_decodes, slots=1)[0].logits
        )
        return shapes.shape[-1]

    def start_prompt(self) -> Prompt:
        """The prompt to decode from: the tokens in the cache, and the next token to feed."""
        if self.initial_index is None:
            batch = self.inputs.shape[0]
            return Prompt(jnp.zeros((batch, 1), jnp.int32), jnp.ones(batch, jnp.int32))
        return Prompt(self.inputs, self.initial_index + 1)

    def prefill(
        self, tokens: Array, length: Array, *, lanes: int, slots: int, with_hidden: bool = False
    ) -> tuple[ModelOutput, AdapterCache]:
        """Feeds the last token of ``start_prompt``; the cache contains the others already.

        Raises:
          ValueError: if ``lanes`` is not ``num_decodes``.
        """
        if lanes != self.num_decodes:
            raise ValueError(
                f"lanes: expected num_decodes, which is {self.num_decodes}, since T5X has so many "
                f"rows for each input, got {lanes}"
            )
        base = jnp.int32(0) if self.initial_index is None else self.initial_index
        network = network_cache.plain(self.cache)
        network = network_cache.expand(network, lanes, self.cache_offset)
        cache = open_cache(network, self.inputs, lanes, base)
        last = jnp.take_along_axis(tokens, length[:, None] - 1, axis=1)
        last = jnp.broadcast_to(last, cache.forced.shape[:2])
        if self.callbacks is not None:
            cache, last = self.callbacks.before_first(cache, last)
        logits, cache = self._feed(cache, last, jnp.int32(-1))
        # The lanes of a row have the same logits, unless callbacks change some of them.
        logits = logits[:, :1] if self.callbacks is None else logits
        return ModelOutput(logits[:, :, None]), cache

    def extend(
        self,
        cache: AdapterCache,
        tokens: Array,
        start: Array | int,
        visible: Array | None = None,
        position: Array | None = None,
    ) -> tuple[ModelOutput, AdapterCache]:
        """See ``LanguageModel.extend``. Several tokens are fed one after another.

        The number of slots of a row is the number of the network's positions after its prompt.

        Raises:
          ValueError: for ``visible``, or for a ``start`` of every lane if all rows of the network
            are at one position.
        """
        start = jnp.asarray(start, jnp.int32)
        if visible is not None:
            raise ValueError(f"visible: expected None, got {visible.shape}; {_NATIVE}")
        if start.ndim and not self.ragged:
            raise ValueError(
                "start: expected a scalar, since all rows of this network are at one position, got "
                f"{list(start.shape)}; {_NATIVE}"
            )
        if tokens.shape[-1] == 1:
            logits, cache = self._feed(cache, tokens[..., 0], start)
            return ModelOutput(logits[:, :, None]), cache

        def feed(carry: tuple[AdapterCache, Array], token: Array) -> tuple[Any, Array]:
            cache, slot = carry
            logits, cache = self._feed(cache, token, slot)
            return (cache, slot + 1), logits

        (cache, _), logits = jax.lax.scan(feed, (cache, start), jnp.moveaxis(tokens, -1, 0))
        return ModelOutput(jnp.moveaxis(logits, 0, 2)), cache

    def select(self, cache: AdapterCache, lanes: Array) -> AdapterCache:
        """See ``SupportsSelect.select``."""

        def gather(part: Array) -> Array:
            return jnp.take_along_axis(part, lanes[..., None], axis=1)

        return cache._replace(
            network=network_cache.select(cache.network, lanes, self.cache_offset),
            forced=gather(cache.forced),
            sequences=gather(cache.sequences),
        )

    def _feed(self, cache: AdapterCache, token: Array, slot: Array) -> tuple[Array, AdapterCache]:
        """Feeds ``token [B, W]`` at ``slot``, a scalar or ``[B, W]``, for logits ``[B, W, V]``."""
        batch, lanes, width = cache.sequences.shape
        rows, length = batch * lanes, width - 2
        cache, token, index, known = enter(cache, token, slot)
        position = index.reshape(rows) if index.ndim else index
        network = network_cache.point_at(cache.network, position, self.cache_offset)
        state = DecodingState(
            cur_index=jnp.broadcast_to(position, (rows,)),
            sequences=known.reshape(rows, width)[:, :length],
            cur_token=token.reshape(rows, 1),
            cache=freeze(network) if isinstance(self.cache, FrozenDict) else network,
        )
        logits, network = self.tokens_to_logits(state)
        # This saves the tracing by which `vocab_size` would find the size of the vocabulary.
        vars(self).setdefault("vocab_size", logits.shape[-1])
        if self.callbacks is not None:
            logits = self.callbacks.on_logits(logits, state, known, cache.loop)
        cache = cache._replace(network=network_cache.plain(network))
        logits = jnp.asarray(logits, jnp.float32).reshape(batch, lanes, -1)
        logits = leave_forced(
            logits, cache.forced, self.inputs, index, self.eos_id, self.show_prompt
        )
        return logits, cache


_NATIVE = (
    "strategies that feed more than one token per row and call need NativeEncoderDecoderModel or"
    " NativeDecoderOnlyModel of decoding_jax.t5x.models; speculation needs"
    " SpeculativeEncoderDecoderModel or SpeculativeDecoderOnlyModel of decoding_jax.t5x.models"
)


class AdapterCache(NamedTuple):
    """The cache of the network, and the tokens of each sequence.

    Attributes:
      network: the network's cache for all lanes.
      forced: int32 ``[B, W, L + 2]``, the forced tokens, and 0 where a token is chosen.
      sequences: int32 ``[B, W, L + 2]``, the tokens fed so far; column 0 is the start token.
      base: int32, a scalar or ``[B]``: the position of the last prompt token. Slot s is position
        ``base + 1 + s``.
      loop: the state of the search that callbacks are given, or None.
    """

    network: Any
    forced: Array
    sequences: Array
    base: Array
    loop: Any = None


def open_cache(network: Any, inputs: Array, lanes: int, base: Array) -> AdapterCache:
    """The cache before the first token.

    Args:
      network: the network's cache.
      inputs: int32 ``[B, L]``, the inputs of T5X.
      lanes: W.
      base: int32, a scalar or ``[B]``: the position of the last prompt token.
    """
    inputs = _padded(inputs).at[:, 0].set(0)
    forced = jnp.broadcast_to(inputs[:, None], (inputs.shape[0], lanes, inputs.shape[1]))
    return AdapterCache(network, forced, forced, base)


def enter(
    cache: AdapterCache, token: Array, slot: Array
) -> tuple[AdapterCache, Array, Array, Array]:
    """Appends the next token of every lane to its sequence.

    Args:
      cache: the cache before the token.
      token: int32 ``[B, W]``, the chosen tokens.
      slot: int32, a scalar or ``[B, W]``. The last prompt token has slot -1.

    Returns:
      The cache with the token in its sequences; the token to feed, which is the forced token if
      there is one; its position, int32, a scalar or ``[B, W]``; and the tokens of each sequence up
      to this position and the forced ones after it, int32 ``[B, W, L + 2]``.
    """
    width = cache.sequences.shape[-1]
    base = cache.base if cache.base.ndim == 0 else cache.base[:, None]
    index = base + 1 + slot
    if slot.ndim:
        # A position after the last one, where a network writes nothing.
        index = jnp.where(slot < 0, width, index)
    if index.ndim:
        index = jnp.broadcast_to(index, token.shape)
    position = jnp.arange(width, dtype=jnp.int32)[None, None]
    is_current = position == jnp.broadcast_to(index, token.shape)[..., None]
    forced = jnp.where(is_current, cache.forced, 0).sum(-1)
    token = jnp.where(forced != 0, forced, token)
    sequences = jnp.where(is_current, token[..., None], cache.sequences)
    known = jnp.where(position <= over_positions(index), sequences, 0)
    known = jnp.where(cache.forced != 0, cache.forced, known)
    return cache._replace(sequences=sequences), token, index, known


def leave_forced(
    logits: Array,
    forced: Array,
    inputs: Array,
    index: Array,
    eos_id: Array,
    show_prompt: bool = True,
) -> Array:
    """Bans all tokens but the forced one where the next token is forced.

    The strategy is shown token 0 (or 1, if 0 is an end token) instead of a forced token outside the
    vocabulary, and instead of an end token in ``inputs``, which does not end the sequence. An end
    token that a callback forces does end it.

    Args:
      logits: float32 ``[B, W, V]``.
      forced: int32 ``[B, W, L + 2]``, the forced tokens.
      inputs: int32 ``[B, L]``, the inputs of T5X.
      index: int32, a scalar or ``[B, W]``, the position of the previous token.
      eos_id: int32, a scalar or ``[E]``, the end tokens.
      show_prompt: whether the strategy is shown the other tokens of ``inputs``, or 0 for them too.
    """
    is_next = jnp.arange(forced.shape[-1], dtype=jnp.int32)[None, None] == over_positions(index) + 1
    next_forced = jnp.where(is_next, forced, 0).sum(-1)
    in_prompt = jnp.where(is_next, _padded(inputs)[:, None], 0).sum(-1) != 0
    end_tokens = jnp.reshape(eos_id, (1, 1, -1))
    substitute = jnp.where((end_tokens == 0).any(), 1, 0)
    is_end = (next_forced[..., None] == end_tokens).any(-1)
    hidden = (in_prompt & (is_end | (not show_prompt))) | (next_forced >= logits.shape[-1])
    allowed = jnp.where(hidden, substitute, next_forced)[..., None]
    vocabulary = jnp.arange(logits.shape[-1], dtype=jnp.int32)[None, None]
    forced_logits = jnp.where(vocabulary == allowed, 0.0, -jnp.inf)
    return jnp.where((next_forced != 0)[..., None], forced_logits, logits)


def over_positions(index: Array) -> Array:
    """A position, a scalar or ``[B, W]``, as ``[1, 1, 1]`` or ``[B, W, 1]``."""
    return index[..., None] if index.ndim else index.reshape(1, 1, 1)


def _padded(inputs: Array) -> Array:
    return jnp.pad(inputs, ((0, 0), (0, 2)))

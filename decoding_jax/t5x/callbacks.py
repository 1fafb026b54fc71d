"""T5X's callbacks: they are given the state of a search as T5X's classes, and may change it.

``state_callback_fn`` is called before every token and once at the end. ``logit_callback_fn`` is
called with the logits of every step.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp

from decoding_jax import fields
from decoding_jax.base import Array, DecodeOutput, LanguageModel, ModelOutput, Prompt
from decoding_jax.loop import Strategy
from decoding_jax.pytrees import pytree
from decoding_jax.strategies.token_by_token import State
from decoding_jax.t5x import adapter, network_cache
from decoding_jax.t5x.adapter import AdapterCache, DecodingState
from decoding_jax.t5x.rescaled import RescaledCache


@pytree
@dataclasses.dataclass(frozen=True)
class SamplingLoopState:
    """The state that a callback is given, with T5X's field names.

    The number of rows is B times ``num_decodes``.

    Attributes:
      step: int32, the number of tokens chosen so far.
      cur_index: int32 ``[rows]``, the position of ``cur_token``.
      sequences: int32 ``[rows, L + 2]``: the start token, the prompt and the text. A non-zero token
        after ``cur_index`` is forced.
      cache: the cache of the network.
      cur_token: int32 ``[rows, 1]``, the next token to feed.
      ended: bool ``[rows, 1]``, whether each sequence has ended.
      rng: the raw key of the whole search.
      log_prob: float32 ``[rows]``, the log-probability of each sequence.
    """

    step: Array
    cur_index: Array
    sequences: Array
    cache: Any
    cur_token: Array
    ended: Array
    rng: Array
    log_prob: Array

    def replace(self, **changes: Any) -> SamplingLoopState:
        """A copy with other values of these fields."""
        return dataclasses.replace(self, **changes)


StateCallback = Callable[[SamplingLoopState], SamplingLoopState]
LogitCallback = Callable[[Array, SamplingLoopState], Array]


class LoopValues(NamedTuple):
    """The fields of a ``SamplingLoopState`` that the search has and the model does not."""

    step: Array
    ended: Array
    log_prob: Array


@dataclasses.dataclass(frozen=True)
class Callbacks:
    """Calls the two callbacks at the steps of a token-by-token strategy.

    The changes that ``state_fn`` makes to ``sequences``, ``cache``, ``cur_token``, ``ended`` and
    ``log_prob`` take effect. A token that it writes after ``cur_index`` is forced, and an end token
    there ends the sequence.

    Attributes:
      state_fn: ``SamplingLoopState -> SamplingLoopState``, or None.
      logit_fn: ``(logits [rows, V], SamplingLoopState) -> logits``, or None.
      rng: the raw key that the callbacks are given.
    """

    state_fn: StateCallback | None
    logit_fn: LogitCallback | None
    rng: Array

    def before_first(self, cache: AdapterCache, token: Array) -> tuple[AdapterCache, Array]:
        """Calls ``state_fn`` before the first step.

        Args:
          cache: the cache before the first step.
          token: int32 ``[B, W]``, the first token to feed.

        Returns:
          The cache and the token after the changes that ``state_fn`` makes.
        """
        batch, lanes = token.shape
        rows = batch * lanes
        ended = jnp.zeros((rows, 1), bool)
        values = LoopValues(jnp.int32(0), ended, jnp.zeros(rows, jnp.float32))
        base = cache.base if cache.base.ndim == 0 else cache.base[:, None]
        index = jnp.broadcast_to(base, token.shape)
        new = self._call(cache.network, cache.forced, index, token, values)
        cache = _forced_ahead(cache, new, index)._replace(loop=values)
        return cache, new.cur_token.reshape(token.shape).astype(jnp.int32)

    def on_logits(
        self, logits: Array, state: DecodingState, sequences: Array, values: LoopValues
    ) -> Array:
        """The logits ``[rows, V]`` after ``logit_fn``, given sequences ``[B, W, L + 2]``."""
        if self.logit_fn is None:
            return logits
        index, token = state.cur_index, state.cur_token
        return self.logit_fn(logits, self._state(state.cache, sequences, index, token, values))

    def _call(
        self, network: Any, sequences: Array, index: Array, token: Array, values: LoopValues
    ) -> SamplingLoopState:
        state = self._state(network, sequences, index, token, values)
        return state if self.state_fn is None else self.state_fn(state)

    def _state(
        self, network: Any, sequences: Array, index: Array, token: Array, values: LoopValues
    ) -> SamplingLoopState:
        rows = token.size
        return SamplingLoopState(
            step=values.step,
            cur_index=index.reshape(rows),
            sequences=sequences.reshape(rows, -1),
            cache=network,
            cur_token=token.reshape(rows, 1),
            ended=values.ended,
            rng=self.rng,
            log_prob=values.log_prob,
        )

    def on_state(self, state: State) -> State:
        """The state of the loop after ``state_fn``."""
        outer, old = state.cache, state.sequences
        cache = outer.inner if isinstance(outer, RescaledCache) else outer
        shape, size = old.length.shape, old.tokens.shape[-1]
        base = cache.base.reshape(-1, 1)
        position = jnp.arange(size + 2, dtype=jnp.int32)[None, None]
        slot = jnp.broadcast_to(position - 1 - base[..., None], (*shape, size + 2))
        text = jnp.take_along_axis(old.tokens, jnp.clip(slot, 0, size - 1), axis=-1)
        text = jnp.where((slot >= 0) & (slot < old.length[..., None]), text, 0)
        sequences = jnp.where(cache.forced != 0, cache.forced, text)
        index = jnp.broadcast_to(jnp.minimum(base + state.step, size + 1), shape)
        token = jnp.take_along_axis(sequences, index[..., None], axis=-1)
        values = LoopValues(state.step, old.done.reshape(-1, 1), old.log_prob.reshape(-1))

        new = self._call(cache.network, sequences, index, token, values)
        cache = _forced_ahead(cache, new, index)
        ended = new.ended.reshape(-1, 1)
        log_prob = jnp.asarray(new.log_prob, jnp.float32)
        cache = cache._replace(loop=LoopValues(state.step, ended, log_prob))
        new_sequences = new.sequences.reshape(sequences.shape).astype(jnp.int32)
        slot = jnp.arange(size, dtype=jnp.int32)[None, None]
        position = jnp.clip(slot + 1 + base[..., None], 0, size + 1)
        position = jnp.broadcast_to(position, old.tokens.shape)
        tokens = jnp.take_along_axis(new_sequences, position, axis=-1)
        tokens = jnp.where(slot < old.length[..., None], tokens, 0)
        log_prob, done = log_prob.reshape(shape), ended.reshape(shape)
        # A sum that a callback changed has no rounding error to carry on.
        lost = jnp.where(log_prob == old.log_prob, old.log_prob_lost, 0.0)
        changed = old._replace(tokens=tokens, log_prob=log_prob, log_prob_lost=lost, done=done)
        if isinstance(outer, RescaledCache):
            slot_tokens = tokens[..., : outer.tokens.shape[-1]]
            outer = outer._replace(inner=cache, tokens=slot_tokens)
        else:
            outer = cache
        next_token = new.cur_token.reshape(shape).astype(jnp.int32)
        return state._replace(cache=outer, sequences=changed, token=next_token)


@dataclasses.dataclass(frozen=True)
class CalledBack:
    """A token-by-token strategy with a call of ``state_fn`` before each step and after the last."""

    strategy: Strategy
    callbacks: Callbacks

    def init(self, model: LanguageModel, prompt: Prompt, key: Any) -> State:
        # A callback may change tokens, so that transforms read whole texts.
        return self.strategy.init(model, prompt, key)._replace(carried=None)

    def done(self, state: State) -> Array:
        return self.strategy.done(state)

    def step(self, model: LanguageModel, prompt: Prompt, state: State) -> State:
        return self.strategy.step(model, prompt, self.callbacks.on_state(state))

    def finalize(self, prompt: Prompt, state: State) -> DecodeOutput:
        return self.strategy.finalize(prompt, self.callbacks.on_state(state))


def _forced_ahead(cache: AdapterCache, new: SamplingLoopState, index: Array) -> AdapterCache:
    """The cache with the network cache of ``new``, whose tokens after ``index`` are forced."""
    sequences = new.sequences.reshape(cache.forced.shape).astype(jnp.int32)
    ahead = jnp.arange(sequences.shape[-1], dtype=jnp.int32)[None, None] > index[..., None]
    return cache._replace(
        network=network_cache.plain(new.cache), forced=jnp.where(ahead, sequences, cache.forced)
    )


@pytree
@dataclasses.dataclass(frozen=True)
class NativeWithCallbacks:
    """A native model with T5X's callbacks, for strategies that extend all lanes token by token.

    The state that callbacks are given differs from T5X's in two ways. ``cache`` is the cache of
    ``model``, in its own layout (``models.caches.Cache`` for the networks of this library). The
    cache already contains the whole prompt in the first state, so the changes that
    ``state_callback_fn`` makes to ``cur_token`` and ``cache`` of the first state do not affect the
    first logits.

    Attributes:
      model: any ``LanguageModel``.
      inputs: int32 ``[B, L]``, the inputs of T5X, which contain the prompts.
      eos_id: int32 ``[E]``, the end tokens.
      callbacks: the callbacks of T5X.
    """

    model: LanguageModel
    inputs: Array
    eos_id: Array
    callbacks: Callbacks = fields.field(static=True)

    ragged = False
    tree = False

    vocab_size = property(operator.attrgetter("model.vocab_size"))
    max_positions = property(operator.attrgetter("model.max_positions"))

    def prefill(
        self, tokens: Array, length: Array, *, lanes: int, slots: int, with_hidden: bool = False
    ) -> tuple[ModelOutput, AdapterCache]:
        """See ``LanguageModel.prefill``.

        The logits have an entry for every lane, since callbacks may treat lanes differently.
        """
        output, network = self.model.prefill(
            tokens, length, lanes=lanes, slots=slots, with_hidden=with_hidden
        )
        batch, vocab = tokens.shape[0], output.logits.shape[-1]
        last = jnp.take_along_axis(tokens, length[:, None] - 1, axis=1)
        last = jnp.broadcast_to(last, (batch, lanes))
        cache = adapter.open_cache(network, self.inputs, lanes, length - 1)
        cache, _ = self.callbacks.before_first(cache, last)
        cache, _, index, known = adapter.enter(cache, last, jnp.int32(-1))
        logits = jnp.broadcast_to(output.logits[:, :, 0], (batch, lanes, vocab))
        logits = self._apply_callbacks(logits, cache, last, index, known)
        return output._replace(logits=logits), cache

    def extend(
        self,
        cache: AdapterCache,
        tokens: Array,
        start: Array | int,
        visible: Array | None = None,
        position: Array | None = None,
    ) -> tuple[ModelOutput, AdapterCache]:
        """See ``LanguageModel.extend``.

        Raises:
          ValueError: for more than one token per lane, lanes at different slots, or a tree.
        """
        if tokens.shape[-1] != 1 or jnp.ndim(start) or visible is not None:
            raise ValueError(
                "state_callback_fn, logit_callback_fn: expected a strategy whose lanes all grow by "
                f"one token a step, got an extend by {tokens.shape[-1]} tokens from "
                f"{list(jnp.shape(start))} slots"
            )
        cache, token, index, known = adapter.enter(
            cache, tokens[..., 0], jnp.asarray(start, jnp.int32)
        )
        output, network = self.model.extend(cache.network, token[..., None], start, None, position)
        logits = self._apply_callbacks(output.logits[:, :, 0], cache, token, index, known)
        return output._replace(logits=logits), cache._replace(network=network)

    def _apply_callbacks(
        self, logits: Array, cache: AdapterCache, token: Array, index: Array, known: Array
    ) -> Array:
        """Logits ``[B, W, V]`` after the callbacks and forced tokens, as ``[B, W, 1, V]``."""
        rows = token.size
        state = DecodingState(
            cur_index=index.reshape(rows),
            sequences=known.reshape(rows, -1)[:, : self.inputs.shape[1]],
            cur_token=token.reshape(rows, 1),
            cache=cache.network,
        )
        changed = self.callbacks.on_logits(logits.reshape(rows, -1), state, known, cache.loop)
        changed = jnp.asarray(changed, jnp.float32).reshape(logits.shape)
        return adapter.leave_forced(changed, cache.forced, self.inputs, index, self.eos_id)[
            :, :, None
        ]

"""T5X's callbacks: they are given the state of a search as T5X's classes, and may change it.

``state_callback_fn`` is called before every token and once at the end. ``logit_callback_fn`` is
called with the logits of every step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp

from decoding_jax.base import Array, DecodeOutput, LanguageModel, Prompt
from decoding_jax.loop import Steps
from decoding_jax.pytrees import pytree
from decoding_jax.strategies.token_by_token import State
from decoding_jax.t5x.network import cache as network_cache
from decoding_jax.t5x.network.adapter import DecodingState
from decoding_jax.t5x.network.forced_tokens import AdapterCache
from decoding_jax.t5x.network.rescaled import RescaledCache


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

    def around(self, steps: Steps) -> Steps:
        """The same steps, with a call of ``state_fn`` before each and after the last."""

        def step(model: LanguageModel, prompt: Prompt, state: State) -> State:
            return steps.step(model, prompt, self._apply_state_fn(state))

        def finalize(prompt: Prompt, state: State) -> DecodeOutput:
            return steps.finalize(prompt, self._apply_state_fn(state))

        return Steps(steps.init, step, steps.done, finalize)

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
        flat = sequences.reshape(-1, sequences.shape[-1])
        return self.logit_fn(
            logits,
            SamplingLoopState(
                values.step,
                state.cur_index,
                flat,
                state.cache,
                state.cur_token,
                values.ended,
                self.rng,
                values.log_prob,
            ),
        )

    def _call(
        self, network: Any, sequences: Array, index: Array, token: Array, values: LoopValues
    ) -> SamplingLoopState:
        rows = token.size
        state = SamplingLoopState(
            values.step,
            index.reshape(rows),
            sequences.reshape(rows, -1),
            network,
            token.reshape(rows, 1),
            values.ended,
            self.rng,
            values.log_prob,
        )
        return state if self.state_fn is None else self.state_fn(state)

    def _apply_state_fn(self, state: State) -> State:
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


def _forced_ahead(cache: AdapterCache, new: SamplingLoopState, index: Array) -> AdapterCache:
    """The cache with the network cache of ``new``, whose tokens after ``index`` are forced."""
    sequences = new.sequences.reshape(cache.forced.shape).astype(jnp.int32)
    ahead = jnp.arange(sequences.shape[-1], dtype=jnp.int32)[None, None] > index[..., None]
    return cache._replace(
        network=network_cache.plain(new.cache), forced=jnp.where(ahead, sequences, cache.forced)
    )

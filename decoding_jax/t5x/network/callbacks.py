"""T5X's callbacks: a search shown in T5X's words, and what a callback changes of it.

``state_callback_fn`` is called before every token and once at the end, ``logit_callback_fn`` with
the logits of every step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp

from decoding_jax.base import Array, DecodeOutput, Prompt
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
    """What a callback is given, by T5X's names; rows are B times ``num_decodes``.

    Attributes:
      step: int32, tokens chosen so far.
      cur_index: int32 ``[rows]``, where ``cur_token`` stands.
      sequences: int32 ``[rows, L + 2]``: the start token, the prompt and the text; a token ahead
        of ``cur_index`` that is not 0 is forced.
      cache: the network's.
      cur_token: int32 ``[rows, 1]``, the next to feed.
      ended: bool ``[rows, 1]``.
      rng: the key of the whole search, raw.
      log_prob: float32 ``[rows]``.
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
        """A copy with other values."""
        return dataclasses.replace(self, **changes)


class LoopFigures(NamedTuple):
    """What of a ``SamplingLoopState`` only the search knows, as it stood before a token."""

    step: Array
    ended: Array
    log_prob: Array


@dataclasses.dataclass(frozen=True)
class Callbacks:
    """The two callbacks around a strategy in lock step, on a ``T5XAdapter``.

    Of what ``on_state`` changes, ``sequences``, ``cache``, ``cur_token``, ``ended`` and
    ``log_prob`` count. A token put ahead of ``cur_index`` is forced, and an end token there ends
    the sequence.

    Attributes:
      state_fn: ``SamplingLoopState -> SamplingLoopState``, or None.
      logit_fn: ``(logits [rows, V], SamplingLoopState) -> logits``, or None.
      rng: shown to them.
    """

    state_fn: Callable[[Any], Any] | None
    logit_fn: Callable[[Any, Any], Any] | None
    rng: Array

    def around(self, steps: Steps) -> Steps:
        """The steps, with the state shown before each and after the last."""

        def step(model: Any, prompt: Prompt, state: State) -> State:
            return steps.step(model, prompt, self._shown(state))

        def finalize(prompt: Prompt, state: State) -> DecodeOutput:
            return steps.finalize(prompt, self._shown(state))

        return Steps(steps.init, step, steps.done, finalize)

    def before_first(self, cache: AdapterCache, token: Array) -> tuple[AdapterCache, Array]:
        """What the first state shown makes of an empty cache and its first token ``[B, W]``."""
        batch, lanes = token.shape
        rows = batch * lanes
        none = jnp.zeros((rows, 1), bool)
        figures = LoopFigures(jnp.int32(0), none, jnp.zeros(rows, jnp.float32))
        base = cache.base if cache.base.ndim == 0 else cache.base[:, None]
        index = jnp.broadcast_to(base, token.shape)
        new = self._call(cache.network, cache.forced, index, token, figures)
        cache = _forcing(cache, new, index)._replace(loop=figures)
        return cache, new.cur_token.reshape(token.shape).astype(jnp.int32)

    def on_logits(
        self, logits: Any, state: DecodingState, sequences: Array, figures: LoopFigures
    ) -> Any:
        """What ``logit_fn`` makes of the logits, given the sequences ``[B, W, L + 2]``."""
        if self.logit_fn is None:
            return logits
        flat = sequences.reshape(-1, sequences.shape[-1])
        return self.logit_fn(
            logits,
            SamplingLoopState(
                figures.step,
                state.cur_index,
                flat,
                state.cache,
                state.cur_token,
                figures.ended,
                self.rng,
                figures.log_prob,
            ),
        )

    def _call(
        self, network: Any, sequences: Array, index: Array, token: Array, figures: LoopFigures
    ) -> Any:
        rows = token.size
        state = SamplingLoopState(
            figures.step,
            index.reshape(rows),
            sequences.reshape(rows, -1),
            network,
            token.reshape(rows, 1),
            figures.ended,
            self.rng,
            figures.log_prob,
        )
        return state if self.state_fn is None else self.state_fn(state)

    def _shown(self, state: State) -> State:
        """The state of a loop as ``state_fn`` leaves it."""
        outer, lanes = state.cache, state.lanes
        cache = outer.inner if isinstance(outer, RescaledCache) else outer
        shape, size = lanes.length.shape, lanes.tokens.shape[-1]
        base = cache.base.reshape(-1, 1)
        place = jnp.arange(size + 2, dtype=jnp.int32)[None, None]
        number = jnp.broadcast_to(place - 1 - base[..., None], (*shape, size + 2))
        text = jnp.take_along_axis(lanes.tokens, jnp.clip(number, 0, size - 1), axis=-1)
        text = jnp.where((number >= 0) & (number < lanes.length[..., None]), text, 0)
        sequences = jnp.where(cache.forced != 0, cache.forced, text)
        index = jnp.broadcast_to(jnp.minimum(base + state.step, size + 1), shape)
        token = jnp.take_along_axis(sequences, index[..., None], axis=-1)
        figures = LoopFigures(state.step, lanes.done.reshape(-1, 1), lanes.log_prob.reshape(-1))

        new = self._call(cache.network, sequences, index, token, figures)
        cache = _forcing(cache, new, index)
        ended = new.ended.reshape(-1, 1)
        log_prob = jnp.asarray(new.log_prob, jnp.float32)
        cache = cache._replace(loop=LoopFigures(state.step, ended, log_prob))
        written = new.sequences.reshape(sequences.shape).astype(jnp.int32)
        source = jnp.clip(
            jnp.arange(size, dtype=jnp.int32)[None, None] + 1 + base[..., None], 0, size + 1
        )
        source = jnp.broadcast_to(source, lanes.tokens.shape)
        tokens = jnp.take_along_axis(written, source, axis=-1)
        tokens = jnp.where(
            jnp.arange(size, dtype=jnp.int32)[None, None] < lanes.length[..., None], tokens, 0
        )
        log_prob, done = log_prob.reshape(shape), ended.reshape(shape)
        lost = jnp.where(log_prob == lanes.log_prob, lanes.log_prob_lost, 0.0)
        lanes = lanes._replace(tokens=tokens, log_prob=log_prob, log_prob_lost=lost, done=done)
        if isinstance(outer, RescaledCache):
            known = tokens[..., : outer.tokens.shape[-1]]
            outer = outer._replace(inner=cache, tokens=known)
        else:
            outer = cache
        fed = new.cur_token.reshape(shape).astype(jnp.int32)
        return state._replace(cache=outer, lanes=lanes, token=fed)


def _forcing(cache: AdapterCache, new: Any, index: Array) -> AdapterCache:
    """The cache with the network's part, and with what stands ahead of ``index`` forced."""
    sequences = new.sequences.reshape(cache.forced.shape).astype(jnp.int32)
    ahead = jnp.arange(sequences.shape[-1], dtype=jnp.int32)[None, None] > index[..., None]
    return cache._replace(
        network=network_cache.plain(new.cache), forced=jnp.where(ahead, sequences, cache.forced)
    )

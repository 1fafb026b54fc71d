"""Token-by-token decoding: every sequence grows by one token a step, which a strategy chooses.

Greedy decoding, sampling and arithmetic sampling are strategies of this loop. All sequences have
the same number of slots in the cache, so each step writes to one slot of every lane, in place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp

from decoding_jax.base import (
    Array,
    Cache,
    DecodeOutput,
    LanguageModel,
    Prefix,
    Prompt,
    Stop,
    Transform,
)
from decoding_jax.loop import model_calls, stopping
from decoding_jax.loop.counters import per_lane
from decoding_jax.loop.driver import Steps
from decoding_jax.loop.sequences import (
    Sequences,
    append_token,
    check_lengths,
    empty_sequences,
    new_values,
)
from decoding_jax.ops.logits import clean, log_prob_of

ChooseToken = Callable[[Any, Array, Array], tuple[Array, Any]]
"""``(strategy_state, logits [B, W, V], step) -> (token int32 [B, W], strategy_state)``.

``step`` is int32, a scalar or ``[B, W]``."""


class TokenByTokenInfo(NamedTuple):
    """Statistics of a token-by-token strategy.

    Attributes:
      model_calls: int32, the prefill and every ``extend``; or ``[B]``, of each row.
    """

    model_calls: Array


class State(NamedTuple):
    """The state of the loop.

    Attributes:
      cache: the model's cache.
      sequences: the sequences decoded so far.
      token: int32 ``[B, W]``, the last token of each sequence, which is not in the cache yet.
      strategy_state: the state of the strategy, such as random keys.
      step: int32, a scalar or ``[B]``, the number of tokens that have been chosen for each
        sequence.
      sample_log_prob: as in ``DecodeOutput``.
    """

    cache: Cache
    sequences: Sequences
    token: Array
    strategy_state: Any
    step: Array
    sample_log_prob: Array | None


def token_by_token(
    choose: ChooseToken,
    init_strategy_state: Callable[[Any, int], Any],
    *,
    lanes: int,
    max_new_tokens: int,
    transform: Transform | None = None,
    stop: Stop | None = None,
    with_sample_log_prob: bool = False,
) -> Steps:
    """The steps of a strategy that chooses one token for each sequence from its transformed logits.

    Args:
      choose: chooses the tokens. A sequence whose logits are all -inf ends without the token, as
        does one whose logits from the model are NaN.
      init_strategy_state: ``(key, B) -> strategy_state``, the state before the first token.
      lanes: W, the number of sequences of a row.
      max_new_tokens: L, the maximum number of new tokens.
      transform: applied to the logits; None changes nothing.
      stop: when a sequence ends.
      with_sample_log_prob: whether the output has ``sample_log_prob``.

    Raises:
      ValueError: for static settings out of range, when the steps are built or traced.
    """
    stop = Stop() if stop is None else stop
    if lanes < 1:
        raise ValueError(f"num_samples: got {lanes}; takes 1 or more")

    def advance(logits: Array, prompt: Prompt, state: State) -> State:
        """Chooses a token from ``logits [B, W, 1, V]`` and appends it to sequences not done."""
        old = state.sequences
        allowed = stopping.ban_end_tokens(stop, clean(logits), old.length[..., None])
        if transform is not None:
            path = Prefix(*prompt, old.tokens[:, :, None], old.length[..., None])
            allowed = clean(model_calls.transformed(transform, allowed, path))
        allowed, logits = allowed[:, :, 0], logits[:, :, 0]
        token, strategy_state = choose(state.strategy_state, allowed, per_lane(state.step, lanes))
        new = append_token(old, token, logits, allowed, stop, max_new_tokens)
        sample_log_prob = state.sample_log_prob
        if sample_log_prob is not None:
            gained = log_prob_of(allowed, token)
            sample_log_prob = new_values(old, new, gained, sample_log_prob)
        return State(state.cache, new, token, strategy_state, state.step + 1, sample_log_prob)

    def init(model: LanguageModel, prompt: Prompt, key: Array | None) -> State:
        batch, size = prompt.tokens.shape
        check_lengths(model, size, max_new_tokens)
        slots = max(max_new_tokens - 1, 1)  # the last token is never fed
        logits, cache = model_calls.prefill(model, prompt, lanes=lanes, slots=slots)
        limit = stopping.limits(stop, batch, max_new_tokens)
        empty = empty_sequences(limit, lanes, max_new_tokens)
        strategy_state = init_strategy_state(key, batch)
        zeros = jnp.zeros(empty.tokens.shape, jnp.float32) if with_sample_log_prob else None
        state = State(cache, empty, empty.length, strategy_state, jnp.int32(0), zeros)
        logits = jnp.broadcast_to(logits, (batch, lanes, *logits.shape[2:]))
        return advance(logits, prompt, state)

    def step(model: LanguageModel, prompt: Prompt, state: State) -> State:
        token, start = state.token[..., None], per_lane(state.step - 1, lanes)
        output, cache = model_calls.extend(model, state.cache, token, start)
        return advance(output.logits, prompt, state._replace(cache=cache))

    def done(state: State) -> Array:
        return state.sequences.done.all()

    def row_done(state: State) -> Array:
        return state.sequences.done.all(-1)

    def finalize(prompt: Prompt, state: State) -> DecodeOutput:
        sequences = state.sequences
        return DecodeOutput(
            tokens=sequences.tokens,
            length=sequences.length,
            log_prob=sequences.log_prob,
            score=sequences.log_prob,
            finished=sequences.finished,
            info=TokenByTokenInfo(state.step),
            sample_log_prob=state.sample_log_prob,
        )

    def settled(state: State) -> Array:
        return state.sequences.length

    return Steps(init, step, done, finalize, row_done, settled, widens=True)

"""Sequences in lock step: every lane of every row grows by one token a step, from a chosen rule.

Greedy decoding, sampling and arithmetic sampling are rules of this loop. All lanes stand at one
slot, so the cache is written at a scalar cursor, in place.
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
from decoding_jax.loop.driver import Steps
from decoding_jax.loop.sequences import Sequences, check_lengths, empty_sequences
from decoding_jax.ops import exact
from decoding_jax.ops.logits import clean, log_prob_of

Choose = Callable[[Any, Array, Array], tuple[Array, Any]]


class TokenByTokenInfo(NamedTuple):
    """``model_calls``: int32, the prefill and every ``extend``."""

    model_calls: Array


class State(NamedTuple):
    """The carry: the cache, the sequences, each lane's last token, and the rule's own state."""

    cache: Cache
    lanes: Sequences
    token: Array
    rule: Any
    step: Array


def grow(
    choose: Choose,
    init_rule: Callable[[Any, int], Any],
    *,
    lanes: int,
    max_new_tokens: int,
    transform: Transform | None = None,
    stop: Stop | None = None,
) -> Steps:
    """The steps of a strategy that chooses one token a lane from its transformed logits.

    Args:
      choose: ``(rule, logits [B, W, V], step) -> (token int32 [B, W], rule)``. A lane whose logits
        are all -inf ends whatever is chosen for it.
      init_rule: ``(key, B) -> rule``, the rule's state before the first token.
      lanes: W.
      max_new_tokens: L.
      transform: applied to the logits; None leaves them.
      stop: when a sequence ends.

    Raises:
      ValueError: for static settings out of range, when the steps are made or traced.
    """
    stop = Stop() if stop is None else stop
    if lanes < 1:
        raise ValueError(f"num_samples: got {lanes}; takes 1 or more")

    def advance(logits: Array, prompt: Prompt, state: State) -> State:
        """Chooses a token from ``logits [B, W, 1, V]`` and appends it where a lane is alive."""
        at = state.lanes
        logits = clean(logits)
        allowed = stopping.ban_end_tokens(stop, logits, at.length[..., None])
        if transform is not None:
            path = Prefix(*prompt, at.tokens[:, :, None], at.length[..., None])
            allowed = clean(model_calls.transformed(transform, allowed, path))
        allowed, logits = allowed[:, :, 0], logits[:, :, 0]
        token, rule = choose(state.rule, allowed, state.step)
        dead = allowed.max(-1) == -jnp.inf
        alive = ~at.done & ~dead
        here = (
            jnp.arange(max_new_tokens, dtype=jnp.int32)[None, None] == at.length[..., None]
        ) & alive[..., None]
        tokens = jnp.where(here, token[..., None], at.tokens)
        length = at.length + alive.astype(jnp.int32)
        ended = stopping.ends(stop, token, tokens, length)
        finished = at.finished | (alive & ended)
        limit = stopping.limits(stop, at.length.shape[0], max_new_tokens)
        gained = jnp.where(alive, log_prob_of(logits, token), 0.0)
        log_prob, lost = exact.add(at.log_prob, at.log_prob_lost, gained)
        new = Sequences(
            tokens=tokens,
            length=length,
            log_prob=log_prob,
            log_prob_lost=lost,
            finished=finished,
            done=at.done | dead | finished | (length >= limit[:, None]),
        )
        return State(state.cache, new, token, rule, state.step + 1)

    def init(model: LanguageModel, prompt: Prompt, key: Any) -> State:
        batch, size = prompt.tokens.shape
        check_lengths(model, size, max_new_tokens)
        slots = max(max_new_tokens - 1, 1)
        logits, cache = model_calls.prefill(model, prompt, lanes=lanes, slots=slots)
        limit = stopping.limits(stop, batch, max_new_tokens)
        empty = empty_sequences(limit, lanes, max_new_tokens)
        state = State(cache, empty, empty.length, init_rule(key, batch), jnp.int32(0))
        logits = jnp.broadcast_to(logits, (batch, lanes, *logits.shape[2:]))
        return advance(logits, prompt, state)

    def step(model: LanguageModel, prompt: Prompt, state: State) -> State:
        token, start = state.token[..., None], state.step - 1
        output, cache = model_calls.extend(model, state.cache, token, start)
        return advance(output.logits, prompt, state._replace(cache=cache))

    def done(state: State) -> Array:
        return state.lanes.done.all()

    def finalize(prompt: Prompt, state: State) -> DecodeOutput:
        at = state.lanes
        return DecodeOutput(
            at.tokens,
            at.length,
            at.log_prob,
            at.log_prob,
            at.finished,
            TokenByTokenInfo(state.step),
        )

    return Steps(init, step, done, finalize)

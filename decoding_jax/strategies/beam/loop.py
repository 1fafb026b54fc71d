"""The loop of the beam family: hypotheses of one length, fed to the model together at every step.

A strategy says how they compete (``Search``), for the most part in ``hypotheses.compete``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp

from decoding_jax.base import Array, DecodeOutput, LanguageModel, Prefix, Prompt, Stop, Transform
from decoding_jax.loop import model_calls, stopping
from decoding_jax.loop.driver import Steps
from decoding_jax.loop.sequences import check_lengths
from decoding_jax.ops.logits import clean, log_softmax
from decoding_jax.strategies.beam.competition import (
    EarlyStopping,
    Pool,
    Rules,
    compete,
    open_beam,
    ranked,
)
from decoding_jax.strategies.beam.shared_cache import Branches, feed, follow, sprout


class BeamInfo(NamedTuple):
    """``model_calls``: int32, the prefill and every ``extend``."""

    model_calls: Array


class State(NamedTuple):
    """The carry: the cache's branches, the beams, their last tokens, the strategy's own state.

    Attributes:
      branches: the hypotheses' keys and values.
      beam: a ``Beam``, or a stack of them, as the strategy has it.
      token: int32 ``[B, K]``, chosen and not fed yet.
      rule: the strategy's own.
      step: int32, tokens that each running hypothesis has.
    """

    branches: Branches
    beam: Any
    token: Array
    rule: Any
    step: Array


def check_beams(
    beam_size: int, num_return: int | None, early_stopping: EarlyStopping = False
) -> int:
    """``num_return``, by default ``beam_size``.

    Raises:
      ValueError: for sizes below 1, more returned than there are, or another ``early_stopping``.
    """
    if beam_size < 1:
        raise ValueError(f"beam_size: got {beam_size}; takes 1 or more")
    num_return = beam_size if num_return is None else num_return
    if not 1 <= num_return <= beam_size:
        raise ValueError(
            f"num_return: got {num_return}; takes 1 to beam_size, which is {beam_size}"
        )
    if not isinstance(early_stopping, bool) and early_stopping != "never":
        raise ValueError(f'early_stopping: got {early_stopping!r}; takes True, False or "never"')
    return num_return


def scores_of(
    logits: Array, tokens: Array, prompt: Prompt, step: Array, stop: Stop, transform: Any
) -> tuple[Array, Array]:
    """What a token adds to a hypothesis: the transformed log-probabilities, and the model's own.

    Transforms are given log-probabilities, and what they return is added as it is, without
    normalising again: a ban does not raise the score of what is left.

    Args:
      logits: float32 ``[B, K, V]`` after hypotheses of ``step`` tokens.
      tokens: int32 ``[B, K, L]``, the hypotheses.
      prompt: B prompts.
      step: int32.
      stop: for its ``min_new_tokens``.
      transform: applied to each hypothesis with its own path; None leaves them.
    """
    log_probs = log_softmax(clean(logits))
    length = jnp.broadcast_to(step, tokens.shape[:2])
    allowed = stopping.ban_end_tokens(stop, log_probs, length)
    if transform is not None:
        path = Prefix(*prompt, tokens[:, :, None], length[..., None])
        allowed = clean(model_calls.transformed(transform, allowed[:, :, None], path))[:, :, 0]
    return allowed, log_probs


def output_of(pool: Pool, num_return: int, model_calls: Array) -> DecodeOutput:
    """The first of a pool. Where there is none: length 0, log-probability and score -inf."""
    tokens, length, log_prob, score, finished = (part[:, :num_return] for part in pool)
    exists = score > -jnp.inf
    return DecodeOutput(
        tokens=jnp.where(exists[..., None], tokens, 0),
        length=jnp.where(exists, length, 0),
        log_prob=jnp.where(exists, log_prob, -jnp.inf),
        score=score,
        finished=finished & exists,
        info=BeamInfo(model_calls),
    )


class Search(NamedTuple):
    """What differs between searches on one loop. ``beam`` is a ``Beam``, or whatever they keep.

    Attributes:
      start: ``(B, rule) -> beam``, before the first token.
      tokens: ``beam -> int32 [B, K, L]``, the running hypotheses.
      grow: ``(beam, allowed [B, K, V], log_probs [B, K, V], rule, step) -> (beam, token [B, K],
        parent [B, K])``, see ``compete``.
      is_open: ``beam -> bool``, any shape: what still goes on.
      result: ``(beam, step) -> Pool``, best first.
    """

    start: Callable[[int, Any], Any]
    tokens: Callable[[Any], Array]
    grow: Callable[[Any, Array, Array, Any, Array], tuple[Any, Array, Array]]
    is_open: Callable[[Any], Array]
    result: Callable[[Any, Array], Pool]


def one_beam(rules: Rules, beam_size: int, max_new_tokens: int) -> Search:
    """The search whose hypotheses all compete with each other."""
    return Search(
        start=lambda batch_size, rule: open_beam(batch_size, beam_size, max_new_tokens, rules.stop),
        tokens=lambda beam: beam.running.tokens,
        grow=functools.partial(compete, rules),
        is_open=lambda beam: beam.open,
        result=functools.partial(ranked, rules),
    )


def beam_steps(
    search: Search,
    *,
    beam_size: int,
    num_return: int,
    max_new_tokens: int,
    transform: Transform | None,
    stop: Stop,
    init_rule: Callable[[Any, int], Any] = lambda key, batch_size: None,
) -> Steps:
    """The steps of a search that grows K hypotheses of every row by a token a step.

    Args:
      search: how they compete.
      beam_size: K, of all hypotheses of a row.
      num_return: N, at most K.
      max_new_tokens: L.
      transform: see ``scores_of``.
      stop: when a sequence ends.
      init_rule: ``(key, B) -> rule``, what ``search.grow`` is given.
    """

    def advance(logits: Array, prompt: Prompt, state: State) -> tuple[State, Array]:
        allowed, log_probs = scores_of(
            logits, search.tokens(state.beam), prompt, state.step, stop, transform
        )
        beam, token, parent = search.grow(state.beam, allowed, log_probs, state.rule, state.step)
        return state._replace(beam=beam, token=token, step=state.step + 1), parent

    def init(model: LanguageModel, prompt: Prompt, key: Any) -> State:
        batch, size = prompt.tokens.shape
        check_lengths(model, size, max_new_tokens)
        logits, branches = sprout(model, prompt, beam_size, max_new_tokens)
        token = jnp.zeros((batch, beam_size), jnp.int32)
        rule = init_rule(key, batch)
        state = State(branches, search.start(batch, rule), token, rule, jnp.int32(0))
        logits = jnp.broadcast_to(logits[:, None], (batch, beam_size, logits.shape[-1]))
        return advance(logits, prompt, state)[0]

    def step(model: LanguageModel, prompt: Prompt, state: State) -> State:
        logits, branches = feed(model, prompt, state.branches, state.token)
        state, parent = advance(logits, prompt, state)
        return state._replace(branches=follow(model, branches, parent))

    def done(state: State) -> Array:
        return ~search.is_open(state.beam).any()

    def finalize(prompt: Prompt, state: State) -> DecodeOutput:
        return output_of(search.result(state.beam, state.step), num_return, state.step)

    return Steps(init, step, done, finalize)

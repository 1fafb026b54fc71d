"""The loop of the beam family: score, choose, finish, continue, reorder.

Each step feeds the last tokens of K hypotheses to the model, scores all their continuations, and
lets these compete. The strategies differ in how they compete, which a ``Search`` describes; beam
search itself is ``competition.compete``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp

from decoding_jax.base import Array, DecodeOutput, LanguageModel, Prefix, Prompt, Stop, Transform
from decoding_jax.loop import model_calls, stopping
from decoding_jax.loop.counters import over_axes
from decoding_jax.loop.driver import Steps
from decoding_jax.loop.sequences import check_lengths
from decoding_jax.ops.logits import are_nan, clean, log_softmax
from decoding_jax.strategies.beam import shared_cache
from decoding_jax.strategies.beam.competition import (
    EarlyStopping,
    Pool,
    Rules,
    compete,
    final_pool,
    initial_beam,
)
from decoding_jax.strategies.beam.hypotheses import every_hypothesis, shared_tokens
from decoding_jax.strategies.beam.shared_cache import SharedCache


class BeamInfo(NamedTuple):
    """Statistics of a beam search.

    Attributes:
      model_calls: int32, the prefill and every ``extend``; or ``[B]``, of each row.
    """

    model_calls: Array


class State(NamedTuple):
    """The state of the loop.

    Attributes:
      shared: the cache of the hypotheses.
      beam: the hypotheses: a ``Beam``, or the pytree that the ``Search`` keeps in its place.
      token: int32 ``[B, K]``, the last token of each hypothesis, which is not in the cache yet.
      keys: typed keys ``[B]``, or None for a search that draws nothing.
      step: int32, a scalar or ``[B]``, the number of tokens of each running hypothesis.
    """

    shared: SharedCache
    beam: Any
    token: Array
    keys: Array | None
    step: Array


def check_beams(
    beam_size: int, num_return: int | None, early_stopping: EarlyStopping = False
) -> int:
    """Checks the settings of a beam search, and returns ``num_return``, by default ``beam_size``.

    Raises:
      ValueError: for sizes below 1, a ``num_return`` above ``beam_size``, or an unknown
        ``early_stopping``.
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


def score_tokens(
    logits: Array,
    tokens: Array,
    prompt: Prompt,
    step: Array,
    stop: Stop,
    transform: Transform | None,
) -> tuple[Array, Array]:
    """Scores every next token of every hypothesis.

    Transforms are applied to log-probabilities. Their result is added to the score of the
    hypothesis without normalising again, so that a ban does not raise the scores of other tokens.

    Args:
      logits: float32 ``[B, K, V]``, after hypotheses of ``step`` tokens.
      tokens: int32 ``[B, K, L]``, the hypotheses.
      prompt: B prompts.
      step: int32, a scalar or ``[B]``.
      stop: for its ``min_new_tokens``.
      transform: applied to each hypothesis with its own path; None changes nothing.

    Returns:
      The transformed log-probabilities, and the model's, both float32 ``[B, K, V]``. Where any of
      the model's logits is NaN, the former are all -inf, and the latter all NaN.
    """
    log_probs = log_softmax(logits)
    length = jnp.broadcast_to(over_axes(step, 2), tokens.shape[:2])
    allowed = stopping.ban_end_tokens(stop, clean(log_probs), length)
    if transform is not None:
        path = Prefix(*prompt, tokens[:, :, None], length[..., None])
        allowed = clean(model_calls.transformed(transform, allowed[:, :, None], path))[:, :, 0]
        allowed = jnp.where(are_nan(log_probs)[..., None], -jnp.inf, allowed)
    return allowed, log_probs


def make_output(pool: Pool, num_return: int, model_calls: Array) -> DecodeOutput:
    """The first entries of a pool. Unused ones have length 0, log-probability and score -inf.

    Those that ended at NaN logits have log-probability and score NaN.
    """
    tokens, length, log_prob, score, finished = (part[:, :num_return] for part in pool)
    exists = score > -jnp.inf
    return DecodeOutput(
        tokens=jnp.where(exists[..., None], tokens, 0),
        length=jnp.where(exists, length, 0),
        log_prob=jnp.where(exists, log_prob, -jnp.inf),
        score=jnp.where(exists & jnp.isnan(log_prob), jnp.nan, score),
        finished=finished & exists,
        info=BeamInfo(model_calls),
    )


class Search(NamedTuple):
    """The parts in which the searches of the family differ.

    A ``beam`` is a ``Beam``, or any pytree that the search keeps in its place.

    Attributes:
      start: ``(B, keys) -> beam``, before the first token.
      tokens: ``beam -> int32 [B, K, L]``, the running hypotheses.
      compete: ``(beam, allowed [B, K, V], log_probs [B, K, V], keys, step) -> (beam,
        token [B, K], parent [B, K])``, the stages choose, finish and continue; see
        ``competition.compete``.
      is_open: ``beam -> bool [B]``, whether the search of each row continues.
      result: ``(beam, step) -> Pool``, best first.
      hypotheses: ``(beam, step) -> Pool``, in any order and of any size: every hypothesis that may
        still be returned, or continued.
    """

    start: Callable[[int, Any], Any]
    tokens: Callable[[Any], Array]
    compete: Callable[[Any, Array, Array, Any, Array], tuple[Any, Array, Array]]
    is_open: Callable[[Any], Array]
    result: Callable[[Any, Array], Pool]
    hypotheses: Callable[[Any, Array], Pool]


def single_beam(rules: Rules, beam_size: int, max_new_tokens: int) -> Search:
    """The search in which all hypotheses of a row compete with each other."""
    return Search(
        start=lambda batch, keys: initial_beam(batch, beam_size, max_new_tokens, rules.stop),
        tokens=lambda beam: beam.running.tokens,
        compete=functools.partial(compete, rules),
        is_open=lambda beam: beam.open,
        result=functools.partial(final_pool, rules),
        hypotheses=functools.partial(every_hypothesis, rules),
    )


def beam_steps(
    search: Search,
    *,
    beam_size: int,
    num_return: int,
    max_new_tokens: int,
    transform: Transform | None,
    stop: Stop,
    init_keys: Callable[[Any, int], Any] = lambda key, batch_size: None,
) -> Steps:
    """The steps of a beam search.

    Args:
      search: how hypotheses compete.
      beam_size: K, the number of hypotheses of a row.
      num_return: N, at most K.
      max_new_tokens: L.
      transform: see ``score_tokens``.
      stop: when a sequence ends.
      init_keys: ``(key, B) -> keys``, the keys that ``search`` is given; None by default.
    """

    def init(model: LanguageModel, prompt: Prompt, key: Array | None) -> State:
        batch, size = prompt.tokens.shape
        check_lengths(model, size, max_new_tokens)
        logits, shared = shared_cache.open_cache(model, prompt, beam_size, max_new_tokens)
        logits = jnp.broadcast_to(logits[:, None], (batch, beam_size, logits.shape[-1]))
        token = jnp.zeros((batch, beam_size), jnp.int32)
        keys = init_keys(key, batch)
        state = State(shared, search.start(batch, keys), token, keys, jnp.int32(0))
        # All hypotheses continue the prompt, so there is nothing to reorder yet.
        return advance(logits, prompt, state)[0]

    def step(model: LanguageModel, prompt: Prompt, state: State) -> State:
        logits, shared = shared_cache.extend_hypotheses(model, prompt, state.shared, state.token)
        state, parent = advance(logits, prompt, state)
        # Reorder: hypothesis k now continues the hypothesis parent[k] of the step before.
        return state._replace(shared=shared_cache.reorder(model, shared, parent))

    def advance(logits: Array, prompt: Prompt, state: State) -> tuple[State, Array]:
        # Score: every next token of every hypothesis.
        tokens = search.tokens(state.beam)
        allowed, log_probs = score_tokens(logits, tokens, prompt, state.step, stop, transform)
        # Choose, finish, continue: candidates, those that end, and those that go on.
        beam, token, parent = search.compete(state.beam, allowed, log_probs, state.keys, state.step)
        return state._replace(beam=beam, token=token, step=state.step + 1), parent

    def done(state: State) -> Array:
        return ~search.is_open(state.beam).any()

    def row_done(state: State) -> Array:
        return ~search.is_open(state.beam)

    def finalize(prompt: Prompt, state: State) -> DecodeOutput:
        return make_output(search.result(state.beam, state.step), num_return, state.step)

    def settled(state: State) -> Array:
        # A row returns at least one sequence, but not always a second.
        shared = shared_tokens(search.hypotheses(state.beam, state.step))[:, None]
        return jnp.where(jnp.arange(num_return)[None] == 0, shared, 0)

    return Steps(init, step, done, finalize, row_done, settled, widens=True)

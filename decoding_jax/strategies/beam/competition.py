"""One step of a beam search: hypotheses of equal length compete, and a pool keeps those that ended.

The functions of this file are the stages of a step. ``compete`` composes them as beam search and
``transformers`` do; other searches compose the same stages in their own way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp

from decoding_jax.base import Array, Stop
from decoding_jax.loop import stopping
from decoding_jax.loop.sequences import over_axes, write
from decoding_jax.ops.gather import gather_items
from decoding_jax.ops.logits import are_nan
from decoding_jax.ops.top_k import top_k
from decoding_jax.strategies.beam.length_penalty import LengthPenalty

EarlyStopping = bool | Literal["never"]

NAN_SCORE = float(jnp.finfo(jnp.float32).min)
"""The score, during a search, of hypotheses that ended where the model's logits were NaN: they rank
after all others. Their log-probability is NaN."""

ChooseCandidates = Callable[[Any, Array, int, Array], tuple[Array, Array]]
"""``(keys, totals [B, n], count, step) -> (score [B, count], index [B, count])``: the candidates
among all continuations, in order of rank. Entries with a score of -inf are not candidates."""


def best_candidates(
    keys: Array | None, totals: Array, count: int, step: Array
) -> tuple[Array, Array]:
    """Chooses the best candidates, as in plain beam search; ties go to the lower index."""
    return top_k(totals, count)


class Running(NamedTuple):
    """Hypotheses that have not ended. All of them have the same length.

    Attributes:
      tokens: int32 ``[B, K, L]``, 0 from that length on.
      log_prob: float32 ``[B, K]``, under the model.
      score: float32 ``[B, K]``, the sum that candidates are chosen by; -inf for unused places.
    """

    tokens: Array
    log_prob: Array
    score: Array


class Pool(NamedTuple):
    """The best hypotheses that have ended, best first.

    Attributes:
      tokens: int32 ``[B, K, L]``, 0 from ``length`` on.
      length: int32 ``[B, K]``.
      log_prob: float32 ``[B, K]``, under the model; NaN for those that ended at NaN logits.
      score: float32 ``[B, K]``, divided by the length penalty; -inf for unused places, and
        ``NAN_SCORE`` where the log-probability is NaN.
      finished: bool ``[B, K]``, true for hypotheses that a stop condition ended.
    """

    tokens: Array
    length: Array
    log_prob: Array
    score: Array
    finished: Array


class Beam(NamedTuple):
    """K hypotheses of every row that compete with each other.

    Attributes:
      running: the hypotheses that continue.
      pool: the hypotheses that have ended.
      open: bool ``[B]``, whether the search of the row continues.
    """

    running: Running
    pool: Pool
    open: Array


class Rules(NamedTuple):
    """How hypotheses are chosen, ended and ranked.

    Attributes:
      stop: the stop conditions.
      penalty: divides the scores in the pool.
      early_stopping: when a full pool closes its row. True: at once. False: when no running
        hypothesis would beat the worst of the pool at the present length. "never": when none would
        at any length, provided that no further token adds to a score.
      choose: chooses the candidates.
    """

    stop: Stop
    penalty: LengthPenalty
    early_stopping: EarlyStopping
    choose: ChooseCandidates = best_candidates


class Candidates(NamedTuple):
    """Continuations of hypotheses by one token, in order of rank.

    Attributes:
      hypotheses: tokens, log-probabilities and scores, ``[B, n, ...]``.
      parent: int32 ``[B, n]``, the hypothesis that each candidate continues.
      token: int32 ``[B, n]``, its last token.
      ended: bool ``[B, n]``, true where a stop condition is met.
      completed: bool ``[B, n]``, true where a stop condition is met or the length limit is reached.
      continues: bool ``[B, n]``, true where no stop condition is met. This includes candidates at
        the length limit, whose row closes. Entries that neither complete nor continue are unused.
    """

    hypotheses: Running
    parent: Array
    token: Array
    ended: Array
    completed: Array
    continues: Array


def initial_beam(batch_size: int, beam_size: int, max_new_tokens: int, stop: Stop) -> Beam:
    """One empty hypothesis a row, with a score of 0. It enters the pool where the limit is 0."""
    shape = (batch_size, beam_size)
    no_tokens = jnp.zeros((*shape, max_new_tokens), jnp.int32)
    first = jnp.broadcast_to(jnp.arange(beam_size, dtype=jnp.int32)[None] == 0, shape)
    closed = stopping.limits(stop, batch_size, max_new_tokens) < 1
    score = jnp.where(first, jnp.float32(0), -jnp.inf)
    ended = jnp.where(closed[:, None], score, -jnp.inf)
    pool = Pool(no_tokens, jnp.zeros(shape, jnp.int32), ended, ended, jnp.zeros(shape, bool))
    return Beam(Running(no_tokens, score, score), pool, ~closed)


def compete(
    rules: Rules, beam: Beam, allowed: Array, log_probs: Array, keys: Array | None, step: Array
) -> tuple[Beam, Array, Array]:
    """One step of beam search, from the scores of the next tokens to the next beam.

    Args:
      rules: how hypotheses are chosen, ended and ranked.
      beam: hypotheses of ``step`` tokens.
      allowed: float32 ``[B, K, V]``, the score of each next token; -inf for banned tokens.
      log_probs: float32 ``[B, K, V]``, the model's log-probabilities.
      keys: typed keys ``[B]`` for ``rules.choose``, or None.
      step: int32, a scalar or ``[B]``.

    Returns:
      The beam; its last tokens, int32 ``[B, K]``; and the hypotheses that they continue, int32
      ``[B, K]``.
    """
    width = allowed.shape[1]
    # Score: every continuation of every hypothesis.
    totals = beam.running.score[..., None] + allowed
    # Choose: the candidates among them.
    candidates = choose_candidates(rules, beam, totals, log_probs, keys, step)
    # Finish: those of the first K candidates that are complete enter the pool.
    pool = merge_pools(
        beam.pool,
        dead_ends(rules, beam, totals, log_probs, step),
        completed_candidates(rules, candidates, width, step),
    )
    # Continue: the K best candidates that have not ended.
    chosen = best_continuing(candidates, width)
    return continue_with(rules, beam.open, candidates, chosen, pool, step)


def choose_candidates(
    rules: Rules, beam: Beam, totals: Array, log_probs: Array, keys: Array | None, step: Array
) -> Candidates:
    """The candidates that ``rules.choose`` chooses by ``totals [B, K, V]``."""
    batch, width, vocab = totals.shape
    flat = totals.reshape(batch, width * vocab)
    score, index = rules.choose(keys, flat, num_candidates(rules.stop, width, vocab), step)
    return make_candidates(rules.stop, beam, score, index, log_probs, step)


def num_candidates(stop: Stop, width: int, vocab_size: int) -> int:
    """The number of candidates: enough that K continue even if every possible end is among them."""
    return min(max(2, 1 + stopping.num_endings(stop)) * width, width * vocab_size)


def make_candidates(
    stop: Stop, beam: Beam, score: Array, index: Array, log_probs: Array, step: Array
) -> Candidates:
    """The candidates at ``index [B, n]``, which counts the K * V continuations of a row."""
    running, _, is_open = beam
    batch, _, max_new_tokens = running.tokens.shape
    vocab = log_probs.shape[-1]
    parent, token = index // vocab, index % vocab
    exists = (score > -jnp.inf) & is_open[:, None]
    log_prob = gather_items(running.log_prob, parent) + gather_items(
        log_probs.reshape(batch, -1), index
    )
    tokens = gather_items(running.tokens, parent)
    tokens = write(tokens, token, step)
    length = jnp.broadcast_to(over_axes(step, 2) + 1, parent.shape)
    ended = stopping.ends(stop, token, tokens, length)
    limit = stopping.limits(stop, batch, max_new_tokens)
    at_limit = (step + 1 >= limit)[:, None]
    return Candidates(
        Running(tokens, log_prob, score),
        parent,
        token,
        ended,
        completed=exists & (ended | at_limit),
        continues=exists & ~ended,
    )


def dead_ends(rules: Rules, beam: Beam, totals: Array, log_probs: Array, step: Array) -> Pool:
    """The hypotheses whose every continuation is banned: they end as at the length limit.

    Those after which the model's logits are NaN are ``NAN_SCORE``.
    """
    running, _, is_open = beam
    is_dead_end = (running.score > -jnp.inf) & is_open[:, None] & (totals.max(-1) == -jnp.inf)
    length = jnp.broadcast_to(over_axes(step, 2), is_dead_end.shape)
    divided = running.score / rules.penalty(jnp.maximum(length, 1))
    is_nan = are_nan(log_probs)
    score = jnp.where(is_dead_end, jnp.where(is_nan, NAN_SCORE, divided), -jnp.inf)
    log_prob = jnp.where(is_nan, jnp.nan, running.log_prob)
    return Pool(running.tokens, length, log_prob, score, jnp.zeros_like(is_dead_end))


def completed_candidates(rules: Rules, candidates: Candidates, count: int, step: Array) -> Pool:
    """Those of the first ``count`` candidates that end or are at the length limit."""
    tokens, log_prob, score = (part[:, :count] for part in candidates.hypotheses)
    length = jnp.broadcast_to(over_axes(step, 2) + 1, score.shape)
    divided = jnp.where(candidates.completed[:, :count], score / rules.penalty(length), -jnp.inf)
    return Pool(tokens, length, log_prob, divided, candidates.ended[:, :count])


def best_continuing(candidates: Candidates, count: int) -> Array:
    """int32 ``[B, count]``: which candidates have the best scores of those that continue."""
    return top_k(jnp.where(candidates.continues, candidates.hypotheses.score, -jnp.inf), count)[1]


def continue_with(
    rules: Rules, is_open: Array, candidates: Candidates, chosen: Array, pool: Pool, step: Array
) -> tuple[Beam, Array, Array]:
    """The beam of the candidates ``chosen``, int32 ``[B, K]``. Returns what ``compete`` returns."""
    tokens, log_prob, score = candidates.hypotheses
    limit = stopping.limits(rules.stop, tokens.shape[0], tokens.shape[-1])
    score = jnp.where(
        gather_items(candidates.continues, chosen), gather_items(score, chosen), -jnp.inf
    )
    running = Running(gather_items(tokens, chosen), gather_items(log_prob, chosen), score)
    is_open = is_open & (step + 1 < limit)
    is_open &= may_improve(rules, running, pool, step + 1, limit)
    token, parent = gather_items(candidates.token, chosen), gather_items(candidates.parent, chosen)
    return Beam(running, pool, is_open), token, parent


def join_pools(*pools: Pool) -> Pool:
    """All entries of all pools, in the order of the pools."""
    return Pool(*(jnp.concatenate(parts, axis=1) for parts in zip(*pools, strict=True)))


def merge_pools(*pools: Pool) -> Pool:
    """The best K of all pools, where K is the size of the first. Ties go to the earlier entry."""
    joined = join_pools(*pools)
    score, best = top_k(joined.score, pools[0].score.shape[1])
    return Pool(*(gather_items(part, best) for part in joined))._replace(score=score)


def first_true(mask: Array, count: int) -> Array:
    """int32 ``[B, count]``: the indices of the first true entries of ``mask [B, n]``, in order.

    Where there are fewer than ``count``, indices of false entries follow.
    """
    position = jnp.arange(mask.shape[1], dtype=jnp.float32)[None]
    return top_k(jnp.where(mask, -position, -jnp.inf), count)[1]


def may_improve(rules: Rules, running: Running, pool: Pool, step: Array, limit: Array) -> Array:
    """bool ``[B]``: whether a running hypothesis may still enter the pool."""
    best = running.score.max(-1)
    full = ((pool.score > -jnp.inf) & ~jnp.isnan(pool.log_prob)).all(-1)
    if rules.early_stopping is True:
        return (best > -jnp.inf) & ~full
    attainable = best / rules.penalty(jnp.broadcast_to(step, best.shape))
    if rules.early_stopping == "never":
        # A penalty is monotone in the length, so the quotient is largest at one of the two ends.
        attainable = jnp.maximum(attainable, best / rules.penalty(jnp.maximum(limit, 1)))
    return (best > -jnp.inf) & (~full | (attainable > pool.score.min(-1)))


def final_pool(rules: Rules, beam: Beam, step: Array) -> Pool:
    """The pool together with the running hypotheses of open rows, best first."""
    return merge_pools(beam.pool, still_running(rules, beam, step))


def still_running(rules: Rules, beam: Beam, step: Array) -> Pool:
    """The running hypotheses of open rows, which have ``step`` tokens, as a pool."""
    running, _, is_open = beam
    length = jnp.broadcast_to(over_axes(step, 2), running.score.shape)
    divided = running.score / rules.penalty(jnp.maximum(length, 1))
    score = jnp.where(is_open[:, None], divided, -jnp.inf)
    unfinished = jnp.zeros(score.shape, bool)
    return Pool(running.tokens, length, running.log_prob, score, unfinished)

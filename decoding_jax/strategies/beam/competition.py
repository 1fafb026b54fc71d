"""Hypotheses of one length that compete, and the pool of those that ended: a beam's one step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp

from decoding_jax.base import Array, Stop
from decoding_jax.loop import stopping
from decoding_jax.ops.gather import gather_items
from decoding_jax.ops.top_k import top_k
from decoding_jax.strategies.beam.length_penalty import LengthPenalty

EarlyStopping = bool | Literal["never"]

Choose = Callable[[Any, Array, int, Array], tuple[Array, Array]]
"""``(rule, totals [B, n], count, step) -> (score [B, count], index [B, count])``: candidates, those
that rank first in front. A score of -inf is no candidate."""


def best(rule: Any, totals: Array, count: int, step: Array) -> tuple[Array, Array]:
    """The candidates of a plain beam search: the best, lower indices first among equals."""
    return top_k(totals, count)


class Running(NamedTuple):
    """Hypotheses that go on, all of one length.

    Attributes:
      tokens: int32 ``[B, K, L]``, 0 from that length on.
      log_prob: float32 ``[B, K]``.
      score: float32 ``[B, K]``, the sum that candidates are chosen by; -inf where there is none.
    """

    tokens: Array
    log_prob: Array
    score: Array


class Pool(NamedTuple):
    """The best hypotheses that ended, best first.

    Attributes:
      tokens: int32 ``[B, K, L]``, 0 from ``length`` on.
      length: int32 ``[B, K]``.
      log_prob: float32 ``[B, K]``.
      score: float32 ``[B, K]``, divided by the length penalty; -inf where there is none.
      finished: bool ``[B, K]``, by a stop condition.
    """

    tokens: Array
    length: Array
    log_prob: Array
    score: Array
    finished: Array


class Beam(NamedTuple):
    """K hypotheses of every row that compete with each other.

    Attributes:
      running: those that go on.
      pool: those that ended.
      open: bool ``[B]``: whether the row goes on.
    """

    running: Running
    pool: Pool
    open: Array


class Rules(NamedTuple):
    """How hypotheses end and are ranked.

    Attributes:
      stop: the stop conditions.
      penalty: divides the scores of the pool.
      early_stopping: when a full pool closes its row: True at once; False when no running
        hypothesis would beat its worst at the present length; "never" when none could at any,
        given that no further token adds to a score.
      choose: the candidates.
      finish_from: how many of the candidates, from the first, may enter the pool: K where None.
        The others only replace those of the first K that end.
    """

    stop: Stop
    penalty: LengthPenalty
    early_stopping: EarlyStopping
    choose: Choose = best
    finish_from: int | None = None


class Candidates(NamedTuple):
    """Continuations of a beam's hypotheses by a token, those that rank first in front.

    Attributes:
      hypotheses: tokens, log-probabilities and scores, ``[B, n, ...]``.
      parent: int32 ``[B, n]``, the hypothesis that each continues.
      token: int32 ``[B, n]``.
      ended: bool ``[B, n]``, by a stop condition.
      leaves: bool ``[B, n]``, ended or at its limit.
      goes_on: bool ``[B, n]``, not ended: at the limit too, where the row closes. One that neither
        leaves nor goes on is none.
    """

    hypotheses: Running
    parent: Array
    token: Array
    ended: Array
    leaves: Array
    goes_on: Array


def open_beam(batch_size: int, beam_size: int, max_new_tokens: int, stop: Stop) -> Beam:
    """One empty hypothesis a row, at score 0. A row whose limit is 0 ends with it."""
    shape = (batch_size, beam_size)
    no_tokens = jnp.zeros((*shape, max_new_tokens), jnp.int32)
    first = jnp.broadcast_to(jnp.arange(beam_size, dtype=jnp.int32)[None] == 0, shape)
    closed = stopping.limits(stop, batch_size, max_new_tokens) < 1
    score = jnp.where(first, jnp.float32(0), -jnp.inf)
    ended = jnp.where(closed[:, None], score, -jnp.inf)
    pool = Pool(no_tokens, jnp.zeros(shape, jnp.int32), ended, ended, jnp.zeros(shape, bool))
    return Beam(Running(no_tokens, score, score), pool, ~closed)


def compete(
    rules: Rules, beam: Beam, allowed: Array, log_probs: Array, rule: Any, step: Array
) -> tuple[Beam, Array, Array]:
    """Grows K hypotheses by a token each: candidates, those that end, those that go on.

    Args:
      rules: how hypotheses end and are ranked.
      beam: hypotheses of ``step`` tokens.
      allowed: float32 ``[B, K, V]``, what each next token adds to the score; -inf is banned.
      log_probs: float32 ``[B, K, V]``, the model's own.
      rule: for ``rules.choose``.
      step: int32.

    Returns:
      The beam, its last tokens ``[B, K]``, and the hypothesis ``[B, K]`` that each continues.
    """
    width, vocab = allowed.shape[1:]
    totals = beam.running.score[..., None] + allowed
    flat = totals.reshape(-1, width * vocab)
    score, index = rules.choose(rule, flat, candidate_count(rules.stop, width, vocab), step)
    candidates = candidates_of(rules.stop, beam, score, index, log_probs, step)
    first = width if rules.finish_from is None else rules.finish_from
    stuck = stuck_of(rules, beam, totals, step)
    pool = best_of(beam.pool, stuck, leaving(rules, candidates, first, step))
    _, at = top_k(jnp.where(candidates.goes_on, score, -jnp.inf), width)
    return go_on(rules, beam.open, candidates, at, pool, step)


def candidate_count(stop: Stop, width: int, vocab_size: int) -> int:
    """Enough candidates that K go on even if every way to end is among them."""
    ends = stopping.end_tokens(stop).shape[-1] + jnp.shape(stop.sequences)[-2:][0]
    return min(max(2, 1 + ends) * width, width * vocab_size)


def candidates_of(
    stop: Stop, beam: Beam, score: Array, index: Array, log_probs: Array, step: Array
) -> Candidates:
    """What ``index [B, n]``, into ``[K * V]``, and the candidates' scores stand for."""
    running, _, is_open = beam
    batch, _, limit_of_buffer = running.tokens.shape
    vocab = log_probs.shape[-1]
    parent, token = index // vocab, index % vocab
    exists = (score > -jnp.inf) & is_open[:, None]
    log_prob = gather_items(running.log_prob, parent) + gather_items(
        log_probs.reshape(batch, -1), index
    )
    tokens = gather_items(running.tokens, parent)
    here = jnp.arange(limit_of_buffer, dtype=jnp.int32)[None, None] == step
    tokens = jnp.where(here, token[..., None], tokens)
    length = jnp.broadcast_to(step + 1, parent.shape)
    ended = stopping.ends(stop, token, tokens, length)
    limit = stopping.limits(stop, batch, limit_of_buffer)
    at_limit = (step + 1 >= limit)[:, None]
    return Candidates(
        Running(tokens, log_prob, score),
        parent,
        token,
        ended,
        leaves=exists & (ended | at_limit),
        goes_on=exists & ~ended,
    )


def stuck_of(rules: Rules, beam: Beam, totals: Array, step: Array) -> Pool:
    """Hypotheses without an allowed continuation end where they are, as at their limit."""
    running, _, is_open = beam
    stuck = (running.score > -jnp.inf) & is_open[:, None] & (totals.max(-1) == -jnp.inf)
    length = jnp.broadcast_to(step, stuck.shape)
    divided = running.score / rules.penalty(jnp.maximum(length, 1))
    score = jnp.where(stuck, divided, -jnp.inf)
    return Pool(running.tokens, length, running.log_prob, score, jnp.zeros_like(stuck))


def leaving(rules: Rules, candidates: Candidates, first: int, step: Array) -> Pool:
    """Those of the first candidates that end, by a stop condition or at their limit."""
    tokens, log_prob, score = (part[:, :first] for part in candidates.hypotheses)
    length = jnp.broadcast_to(step + 1, score.shape)
    divided = jnp.where(candidates.leaves[:, :first], score / rules.penalty(length), -jnp.inf)
    return Pool(tokens, length, log_prob, divided, candidates.ended[:, :first])


def go_on(
    rules: Rules, is_open: Array, candidates: Candidates, at: Array, pool: Pool, step: Array
) -> tuple[Beam, Array, Array]:
    """The beam of the candidates ``at [B, K]``; see ``compete`` for what it returns."""
    tokens, log_prob, score = candidates.hypotheses
    limit = stopping.limits(rules.stop, tokens.shape[0], tokens.shape[-1])
    kept = jnp.where(gather_items(candidates.goes_on, at), gather_items(score, at), -jnp.inf)
    going = Running(gather_items(tokens, at), gather_items(log_prob, at), kept)
    is_open = is_open & (step + 1 < limit)
    is_open &= may_improve(rules, going, pool, step + 1, limit)
    return (
        Beam(going, pool, is_open),
        gather_items(candidates.token, at),
        gather_items(candidates.parent, at),
    )


def best_of(*pools: Pool) -> Pool:
    """The best K of several pools, K the size of the first; of equals, the earlier."""
    joined = Pool(*(jnp.concatenate(parts, axis=1) for parts in zip(*pools, strict=True)))
    score, at = top_k(joined.score, pools[0].score.shape[1])
    return Pool(
        gather_items(joined.tokens, at),
        gather_items(joined.length, at),
        gather_items(joined.log_prob, at),
        score,
        gather_items(joined.finished, at),
    )


def first_of(chosen: Array, count: int) -> Array:
    """int32 ``[B, count]``: where the first True of ``[B, n]`` are, and then anything."""
    place = jnp.arange(chosen.shape[1], dtype=jnp.float32)[None]
    return top_k(jnp.where(chosen, -place, -jnp.inf), count)[1]


def may_improve(rules: Rules, running: Running, pool: Pool, step: Array, limit: Array) -> Array:
    """bool ``[B]``: whether a running hypothesis may still enter the pool."""
    best = running.score.max(-1)
    full = (pool.score > -jnp.inf).all(-1)
    if rules.early_stopping is True:
        return (best > -jnp.inf) & ~full
    reach = best / rules.penalty(jnp.broadcast_to(step, best.shape))
    if rules.early_stopping == "never":
        # A penalty is monotone in the length, so the quotient is largest at one of the two ends.
        reach = jnp.maximum(reach, best / rules.penalty(jnp.maximum(limit, 1)))
    return (best > -jnp.inf) & (~full | (reach > pool.score.min(-1)))


def ranked(rules: Rules, beam: Beam, step: Array) -> Pool:
    """The pool, and what is still running in an open row, best first."""
    return best_of(beam.pool, still_running(rules, beam, step))


def still_running(rules: Rules, beam: Beam, step: Array) -> Pool:
    """What is still running in an open row."""
    running, _, is_open = beam
    length = jnp.broadcast_to(step, running.score.shape)
    divided = running.score / rules.penalty(jnp.maximum(length, 1))
    score = jnp.where(is_open[:, None], divided, -jnp.inf)
    unfinished = jnp.zeros(score.shape, bool)
    return Pool(running.tokens, length, running.log_prob, score, unfinished)

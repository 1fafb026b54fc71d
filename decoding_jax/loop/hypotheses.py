"""Hypotheses of one length that compete, and the pool of those that ended: a beam's one step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp

from decoding_jax.base import Array, Stop
from decoding_jax.loop import stopping
from decoding_jax.loop.length_penalty import LengthPenalty
from decoding_jax.ops.top_k import top_k

EarlyStopping = bool | Literal["never"]

Choose = Callable[[Any, Array, int, Array], tuple[Array, Array]]
"""``(rule, totals [B, n], count, step) -> (score [B, count], index [B, count])``: candidates, those
that rank first in front. A score of -inf is no candidate."""


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
        hypothesis would beat its worst at the present length; "never" when none could at any.
      choose: the candidates.
      finish_from: how many of the candidates, from the first, may enter the pool: K where None.
        The others only replace those of the first K that end.
    """

    stop: Stop
    penalty: LengthPenalty
    early_stopping: EarlyStopping
    choose: Choose
    finish_from: int | None = None


def open_beam(batch_size: int, beam_size: int, max_new_tokens: int, stop: Stop) -> Beam:
    """One empty hypothesis a row, at score 0. A row whose limit is 0 ends with it."""
    shape = (batch_size, beam_size)
    no_tokens = jnp.zeros((*shape, max_new_tokens), jnp.int32)
    first = jnp.broadcast_to(jnp.arange(beam_size)[None] == 0, shape)
    closed = stopping.limits(stop, batch_size, max_new_tokens) < 1
    score = jnp.where(first, 0.0, -jnp.inf)
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
    running, pool, is_open = beam
    batch, width, limit_of_buffer = running.tokens.shape
    vocab = allowed.shape[-1]
    limit = stopping.limits(rules.stop, batch, limit_of_buffer)

    # Enough that K go on even if every way to end is among them.
    ends = jnp.shape(rules.stop.eos_ids)[-1] + jnp.shape(rules.stop.sequences)[-2:][0]
    count = min(max(2, 1 + ends) * width, width * vocab)
    totals = running.score[..., None] + allowed
    score, index = rules.choose(rule, totals.reshape(batch, width * vocab), count, step)
    parent, token = index // vocab, index % vocab
    exists = (score > -jnp.inf) & is_open[:, None]
    log_prob = _take(running.log_prob, parent) + _take(
        log_probs.reshape(batch, width * vocab), index
    )
    tokens = jnp.take_along_axis(running.tokens, parent[..., None], axis=1)
    here = jnp.arange(limit_of_buffer)[None, None] == step
    tokens = jnp.where(here, token[..., None], tokens)

    length = jnp.broadcast_to(step + 1, parent.shape)
    enough = length >= stopping.minimum(rules.stop)[:, None]
    ended = stopping.is_end_token(rules.stop, token)
    ended |= enough & stopping.ends_with_sequence(rules.stop, tokens, length)
    goes_on = exists & ~ended  # at the limit too, where the row closes
    at_limit = (step + 1 >= limit)[:, None]

    # A hypothesis without an allowed continuation ends where it is, as one at its limit does.
    stuck = (running.score > -jnp.inf) & is_open[:, None] & (totals.max(-1) == -jnp.inf)
    so_far = jnp.broadcast_to(step, stuck.shape)
    first = width if rules.finish_from is None else rules.finish_from
    divided = score[:, :first] / rules.penalty(length[:, :first])
    leaves = (exists & (ended | at_limit))[:, :first]
    pool = best_of(
        pool,
        Pool(
            running.tokens,
            so_far,
            running.log_prob,
            jnp.where(stuck, running.score / rules.penalty(jnp.maximum(so_far, 1)), -jnp.inf),
            jnp.zeros_like(stuck),
        ),
        Pool(
            tokens[:, :first],
            length[:, :first],
            log_prob[:, :first],
            jnp.where(leaves, divided, -jnp.inf),
            ended[:, :first],
        ),
    )

    kept, at = top_k(jnp.where(goes_on, score, -jnp.inf), width)
    going = Running(jnp.take_along_axis(tokens, at[..., None], axis=1), _take(log_prob, at), kept)
    is_open &= ~at_limit[:, 0] & _may_improve(rules, going, pool, step + 1, limit)
    return Beam(going, pool, is_open), _take(token, at), _take(parent, at)


def best_of(*pools: Pool) -> Pool:
    """The best K of several pools, K the size of the first; of equals, the earlier."""
    joined = Pool(*(jnp.concatenate(parts, axis=1) for parts in zip(*pools, strict=True)))
    score, at = top_k(joined.score, pools[0].score.shape[1])
    return Pool(
        jnp.take_along_axis(joined.tokens, at[..., None], axis=1),
        _take(joined.length, at),
        _take(joined.log_prob, at),
        score,
        _take(joined.finished, at),
    )


def _take(values: Array, index: Array) -> Array:
    return jnp.take_along_axis(values, index, axis=1)


def _may_improve(rules: Rules, running: Running, pool: Pool, step: Array, limit: Array) -> Array:
    """bool ``[B]``: whether a running hypothesis may still enter the pool."""
    best = running.score.max(-1)
    full = (pool.score > -jnp.inf).all(-1)
    if rules.early_stopping is True:
        return (best > -jnp.inf) & ~full
    divisor = rules.penalty(jnp.broadcast_to(step, best.shape))
    if rules.early_stopping == "never":
        divisor = jnp.maximum(divisor, rules.penalty(jnp.maximum(limit, 1)))
    return (best > -jnp.inf) & (~full | (best / divisor > pool.score.min(-1)))


def ranked(rules: Rules, beam: Beam, step: Array) -> Pool:
    """The pool, and what is still running in an open row, best first."""
    running, pool, is_open = beam
    length = jnp.broadcast_to(step, running.score.shape)
    divided = running.score / rules.penalty(jnp.maximum(length, 1))
    score = jnp.where(is_open[:, None], divided, -jnp.inf)
    unfinished = jnp.zeros_like(pool.finished)
    return best_of(pool, Pool(running.tokens, length, running.log_prob, score, unfinished))

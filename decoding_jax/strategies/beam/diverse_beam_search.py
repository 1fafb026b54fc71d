"""Diverse beam search: groups of hypotheses, each penalised for the tokens of earlier groups."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from decoding_jax.base import Array, Stop, Transform
from decoding_jax.loop import Static, Steps, search
from decoding_jax.rows import PerRow
from decoding_jax.strategies.beam.competition import (
    Beam,
    EarlyStopping,
    Pool,
    Rules,
    compete,
    final_pool,
    initial_beam,
    merge_pools,
)
from decoding_jax.strategies.beam.hypotheses import every_hypothesis
from decoding_jax.strategies.beam.length_penalty import LengthPenalty, as_length_penalty
from decoding_jax.strategies.beam.loop import Search, beam_steps, check_beams


@search
def diverse_beam_search(
    *,
    beam_size: Static[int],
    num_groups: Static[int],
    diversity_penalty: PerRow[float | Array] = 0.5,
    num_return: Static[int | None] = None,
    max_new_tokens: Static[int],
    length_penalty: PerRow[float | Array | LengthPenalty] = 0.0,
    early_stopping: Static[EarlyStopping] = False,
    transform: Transform | None = None,
    stop: Stop | None = None,
) -> Steps:
    """Beam search in groups, each penalised for the tokens that earlier groups choose.

    Vijayakumar et al. 2018, "Diverse Beam Search: Decoding Diverse Solutions from Neural Sequence
    Models", algorithm 1 with Hamming diversity. At every step the groups choose in turn, and the
    score of a token is reduced by ``diversity_penalty`` for every hypothesis of an earlier group
    that continues with the token at this step. Each group has ``beam_size / num_groups`` hypotheses
    and its own pool. At the end, the sequences of all groups are ranked together.

    Args:
      model: the language model.
      prompt: tokens int32 ``[B, P]`` and their length ``[B]``.
      beam_size: K, the number of hypotheses of a row, over all groups.
      num_groups: G, a divisor of K.
      diversity_penalty: in nats, 0 or above; a number, or float32 ``[B]``, one for each row. At 0,
        every group returns what ``beam_search`` of its width returns.
      num_return: N, at most K; by default K.
      max_new_tokens: L, the maximum number of new tokens.
      length_penalty: as for ``beam_search``.
      early_stopping: as for ``beam_search``, for each group by itself.
      transform: applied to the log-probabilities after each hypothesis. Its result is added to the
        score without normalising again.
      stop: when a sequence ends.

    Returns:
      A ``DecodeOutput``, best first, as from ``beam_search``. The diversity penalties are
      subtracted from ``score``, but not from ``log_prob``.

    Raises:
      ValueError: as ``beam_search``, and for a ``num_groups`` that does not divide ``beam_size``.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from decoding_jax import Prompt
      >>> from decoding_jax.testing import TableLM
      >>> model = TableLM.random(jax.random.key(0), 5)
      >>> prompt = Prompt(jnp.array([[1, 2]]), jnp.array([2]))
      >>> output = diverse_beam_search(model, prompt, beam_size=4, num_groups=2, max_new_tokens=6)
      >>> output.tokens.shape
      (1, 4, 6)
    """
    num_return = check_beams(beam_size, num_return, early_stopping)
    if num_groups < 1 or beam_size % num_groups:
        raise ValueError(
            f"num_groups: got {num_groups}; takes a divisor of beam_size, which is {beam_size}"
        )
    stop = Stop() if stop is None else stop
    rules = Rules(stop, as_length_penalty(length_penalty), early_stopping)
    width = beam_size // num_groups
    penalty = jnp.asarray(diversity_penalty, jnp.float32).reshape(-1, 1)

    # The groups are stacked in one Beam, whose leaves are [B, num_groups, width, ...].
    def start(batch_size: int, keys: Array | None) -> Beam:
        group = initial_beam(batch_size, width, max_new_tokens, stop)
        return jax.tree.map(
            lambda x: jnp.broadcast_to(x[:, None], (x.shape[0], num_groups, *x.shape[1:])), group
        )

    def compete_in_turn(
        beam: Beam, allowed: Array, log_probs: Array, keys: Array | None, step: Array
    ) -> tuple[Beam, Array, Array]:
        def next_group(counts: Array, group: tuple[Beam, Array, Array]) -> tuple[Array, Any]:
            """``counts`` float32 ``[B, V]``: the number of hypotheses that chose each token."""
            beam, allowed, log_probs = group
            allowed = allowed - (penalty * counts)[:, None]
            beam, token, parent = compete(rules, beam, allowed, log_probs, keys, step)
            exists = (beam.running.score > -jnp.inf).astype(jnp.float32)
            add = jax.vmap(lambda counts, token, exists: counts.at[token].add(exists))
            return add(counts, token, exists), (beam, token, parent)

        no_counts = jnp.zeros((allowed.shape[0], allowed.shape[-1]), jnp.float32)
        groups = (
            _groups_first(beam),
            _split_groups(allowed, num_groups),
            _split_groups(log_probs, num_groups),
        )
        _, (beam, token, parent) = lax.scan(next_group, no_counts, groups)
        parent += width * jnp.arange(num_groups, dtype=jnp.int32)[:, None, None]
        return _groups_second(beam), _join_groups(token), _join_groups(parent)

    def result(beam: Beam, step: Array) -> Pool:
        pools = jax.vmap(functools.partial(final_pool, rules, step=step))(_groups_first(beam))
        return merge_pools(Pool(*(_join_groups(part) for part in pools)))

    def hypotheses(beam: Beam, step: Array) -> Pool:
        pools = jax.vmap(functools.partial(every_hypothesis, rules, step=step))(_groups_first(beam))
        return Pool(*(_join_groups(part) for part in pools))

    search = Search(
        start=start,
        tokens=lambda beam: _join_groups(jnp.moveaxis(beam.running.tokens, 1, 0)),
        compete=compete_in_turn,
        is_open=lambda beam: beam.open.any(-1),
        result=result,
        hypotheses=hypotheses,
    )
    return beam_steps(
        search,
        beam_size=beam_size,
        num_return=num_return,
        max_new_tokens=max_new_tokens,
        transform=transform,
        stop=stop,
    )


def _groups_first(beam: Beam) -> Beam:
    """Moves the axis of groups before that of rows."""
    return jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), beam)


def _groups_second(beam: Beam) -> Beam:
    """The inverse of ``_groups_first``."""
    return jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), beam)


def _join_groups(groups: Array) -> Array:
    """Reshapes ``[G, B, K / G, ...]`` to ``[B, K, ...]``."""
    rows = jnp.moveaxis(groups, 0, 1)
    return rows.reshape(rows.shape[0], -1, *rows.shape[3:])


def _split_groups(rows: Array, num_groups: int) -> Array:
    """Reshapes ``[B, K, ...]`` to ``[G, B, K / G, ...]``."""
    return jnp.moveaxis(rows.reshape(rows.shape[0], num_groups, -1, *rows.shape[2:]), 1, 0)

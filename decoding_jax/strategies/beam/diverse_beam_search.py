"""Diverse beam search: groups of beams, each kept from the tokens of the groups before it."""

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
    best_of,
    compete,
    open_beam,
    ranked,
)
from decoding_jax.strategies.beam.length_penalty import LengthPenalty, as_rule
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
    Models", algorithm 1 with Hamming diversity: at every step the groups choose in turn, and a
    token's score loses ``diversity_penalty`` for every hypothesis of an earlier group that goes on
    with it at this step. Each group has ``beam_size / num_groups`` hypotheses and a pool of its
    own; at the end all are ranked together.

    Args:
      model: the language model.
      prompt: tokens int32 ``[B, P]`` and their length ``[B]``.
      beam_size: K, hypotheses a row, of all groups.
      num_groups: G, a divisor of K.
      diversity_penalty: in nats, 0 or above; a number or float32 ``[B]``, one a row. At 0 every
        group gives what ``beam_search`` of its width gives.
      num_return: N, at most K; K where None.
      max_new_tokens: L, the most new tokens.
      length_penalty: as for ``beam_search``.
      early_stopping: as for ``beam_search``, group by group.
      transform: applied to each hypothesis's log-probabilities, and added to the score as it is.
      stop: when a sequence ends.

    Returns:
      A ``DecodeOutput``, best first, as from ``beam_search``; ``score`` has lost the diversity
      penalties, ``log_prob`` has not.

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
    rules = Rules(stop, as_rule(length_penalty), early_stopping)
    width = beam_size // num_groups
    penalty = jnp.asarray(diversity_penalty, jnp.float32).reshape(-1, 1)

    # A beam is a stack of groups: its leaves are [num_groups, B, width, ...].
    def start(batch_size: int, rule: Any) -> Beam:
        group = open_beam(batch_size, width, max_new_tokens, stop)
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (num_groups, *x.shape)), group)

    def grow(
        beam: Beam, allowed: Array, log_probs: Array, rule: Any, step: Array
    ) -> tuple[Beam, Array, Array]:
        def next_group(chosen: Array, group: tuple[Beam, Array, Array]) -> tuple[Array, Any]:
            beam, allowed, log_probs = group
            allowed = allowed - (penalty * chosen)[:, None]
            beam, token, parent = compete(rules, beam, allowed, log_probs, rule, step)
            counted = (beam.running.score > -jnp.inf).astype(jnp.float32)
            add = jax.vmap(lambda row, at, count: row.at[at].add(count))
            return add(chosen, token, counted), (beam, token, parent)

        chosen = jnp.zeros((allowed.shape[0], allowed.shape[-1]), jnp.float32)
        groups = (beam, _apart(allowed, num_groups), _apart(log_probs, num_groups))
        _, (beam, token, parent) = lax.scan(next_group, chosen, groups)
        parent += width * jnp.arange(num_groups, dtype=jnp.int32)[:, None, None]
        return beam, _together(token), _together(parent)

    def result(beam: Beam, step: Array) -> Pool:
        pool = jax.vmap(functools.partial(ranked, rules, step=step))(beam)
        return best_of(Pool(*(_together(part) for part in pool)))

    search = Search(
        start=start,
        tokens=lambda beam: _together(beam.running.tokens),
        grow=grow,
        is_open=lambda beam: beam.open,
        result=result,
    )
    return beam_steps(
        search,
        beam_size=beam_size,
        num_return=num_return,
        max_new_tokens=max_new_tokens,
        transform=transform,
        stop=stop,
    )


def _together(stack: Array) -> Array:
    """``[G, B, K / G, ...]`` as ``[B, K, ...]``."""
    rows = jnp.moveaxis(stack, 0, 1)
    return rows.reshape(rows.shape[0], -1, *rows.shape[3:])


def _apart(rows: Array, num_groups: int) -> Array:
    """``[B, K, ...]`` as ``[G, B, K / G, ...]``."""
    return jnp.moveaxis(rows.reshape(rows.shape[0], num_groups, -1, *rows.shape[2:]), 1, 0)

"""Diverse beam search: groups of hypotheses, each penalised for the tokens of earlier groups."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from decoding_jax import fields
from decoding_jax.base import Array
from decoding_jax.loop import as_function
from decoding_jax.pytrees import pytree
from decoding_jax.strategies.beam import competition
from decoding_jax.strategies.beam.competition import Beam, Pool
from decoding_jax.strategies.beam.loop import RankedBeams, every_hypothesis


@pytree
@dataclasses.dataclass(frozen=True, kw_only=True)
class DiverseBeamSearch(RankedBeams):
    """Beam search in groups, each penalised for the tokens that earlier groups choose.

    Vijayakumar et al. 2018, "Diverse Beam Search: Decoding Diverse Solutions from Neural Sequence
    Models", algorithm 1 with Hamming diversity. At every step the groups choose in turn, and the
    score of a token is reduced by ``diversity_penalty`` for every hypothesis of an earlier group
    that continues with the token at this step. Each group has ``beam_size / num_groups`` hypotheses
    and its own pool. At the end, the sequences of all groups are ranked together.

    The output is best first, as from ``beam_search``. The diversity penalties are subtracted from
    ``score``, but not from ``log_prob``.

    Attributes:
      beam_size: K, the number of hypotheses of a row, over all groups.
      num_groups: G, a divisor of K.
      diversity_penalty: in nats, 0 or above; a number, or float32 ``[B]``, one for each row. At 0,
        every group returns what ``beam_search`` of its width returns.
      num_return: N, at most K; by default K.
      with_trace: whether ``info`` has a ``trace`` of the hypotheses, a ``SearchTrace``.
      max_new_tokens: L, the maximum number of new tokens.
      length_penalty: as for ``beam_search``.
      early_stopping: as for ``beam_search``, for each group by itself.
      transform: applied to the log-probabilities after each hypothesis. Its result is added to the
        score without normalising again.
      stop: when a sequence ends.

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

    num_groups: int = fields.count()
    diversity_penalty: Any = fields.number("a number of 0 or more", lambda x: x >= 0, default=0.5)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.beam_size % self.num_groups:
            expected = f"a divisor of beam_size, which is {self.beam_size}"
            raise fields.error("num_groups", expected, self.num_groups)

    def start(self, batch_size: int, keys: Any, max_new_tokens: int) -> Beam:
        """The groups are stacked in one ``Beam``, whose leaves are ``[B, G, K / G, ...]``."""
        width = self.beam_size // self.num_groups
        group = competition.initial_beam(batch_size, width, max_new_tokens, self.stop)
        return jax.tree.map(
            lambda x: jnp.broadcast_to(x[:, None], (batch_size, self.num_groups, *x.shape[1:])),
            group,
        )

    def tokens(self, beam: Beam) -> Array:
        return _join_groups(jnp.moveaxis(beam.running.tokens, 1, 0))

    def compete(
        self, beam: Beam, allowed: Array, log_probs: Array, keys: Any, step: Array
    ) -> tuple[Beam, Array, Array]:
        """The groups compete in turn, each by itself."""
        penalty = jnp.asarray(self.diversity_penalty, jnp.float32).reshape(-1, 1)

        def next_group(counts: Array, group: tuple[Beam, Array, Array]) -> tuple[Array, Any]:
            """``counts`` float32 ``[B, V]``: the number of hypotheses that chose each token."""
            beam, allowed, log_probs = group
            allowed = allowed - (penalty * counts)[:, None]
            beam, token, parent = competition.compete(
                self.rules, beam, allowed, log_probs, keys, step
            )
            exists = (beam.running.score > -jnp.inf).astype(jnp.float32)
            add = jax.vmap(lambda counts, token, exists: counts.at[token].add(exists))
            return add(counts, token, exists), (beam, token, parent)

        no_counts = jnp.zeros((allowed.shape[0], allowed.shape[-1]), jnp.float32)
        groups = (
            _groups_first(beam),
            _split_groups(allowed, self.num_groups),
            _split_groups(log_probs, self.num_groups),
        )
        _, (beam, token, parent) = lax.scan(next_group, no_counts, groups)
        width = self.beam_size // self.num_groups
        parent += width * jnp.arange(self.num_groups, dtype=jnp.int32)[:, None, None]
        return _groups_second(beam), _join_groups(token), _join_groups(parent)

    def is_open(self, beam: Beam) -> Array:
        return beam.open.any(-1)

    def result(self, beam: Beam, step: Array) -> Pool:
        final = functools.partial(competition.final_pool, self.rules, step=step)
        pools = jax.vmap(final)(_groups_first(beam))
        return competition.merge_pools(Pool(*(_join_groups(part) for part in pools)))

    def hypotheses(self, beam: Beam, step: Array) -> Pool:
        every = functools.partial(every_hypothesis, self.rules, step=step)
        pools = jax.vmap(every)(_groups_first(beam))
        return Pool(*(_join_groups(part) for part in pools))


diverse_beam_search = as_function(DiverseBeamSearch)


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

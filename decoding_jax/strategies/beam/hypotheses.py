"""All hypotheses of a beam search together, and the tokens that they share."""

from __future__ import annotations

import jax.numpy as jnp

from decoding_jax.base import Array
from decoding_jax.strategies.beam.competition import Beam, Pool, Rules, still_running


def every_hypothesis(rules: Rules, beam: Beam, step: Array) -> Pool:
    """The pool and the running hypotheses of open rows, ``[B, 2 K]``, in no order."""
    return join_pools(beam.pool, still_running(rules, beam, step))


def join_pools(*pools: Pool) -> Pool:
    """All entries of all pools, in the order of the pools."""
    return Pool(*(jnp.concatenate(parts, axis=1) for parts in zip(*pools, strict=True)))


def split_pool(pool: Pool, is_met: Array) -> tuple[Pool, Pool]:
    """The entries of a pool that meet the constraints, and the other entries.

    Those that ended at NaN logits are among the others, of which they rank last.
    """
    is_met &= ~jnp.isnan(pool.log_prob)
    met = pool._replace(score=jnp.where(is_met, pool.score, -jnp.inf))
    return met, pool._replace(score=jnp.where(is_met, -jnp.inf, pool.score))


def shared_tokens(pool: Pool) -> Array:
    """The number of leading tokens that all entries of a pool share, int32 ``[B]``.

    Every sequence that a search returns is one of its present hypotheses or continues one, so all
    returned sequences begin with these tokens.
    """
    exists = pool.score > -jnp.inf
    one = jnp.take_along_axis(pool.tokens, exists.argmax(-1)[:, None, None], axis=1)
    is_shared = ((pool.tokens == one) | ~exists[..., None]).all(1)
    shared = jnp.cumprod(is_shared.astype(jnp.int32), axis=-1).sum(-1, dtype=jnp.int32)
    shortest = jnp.where(exists, pool.length, pool.tokens.shape[-1]).min(-1)
    return jnp.where(exists.any(-1), jnp.minimum(shared, shortest), 0)

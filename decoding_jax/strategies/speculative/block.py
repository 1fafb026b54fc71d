"""What passes between drafters, verifiers and the driver: one block of drafted tokens a lane."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp

from decoding_jax.base import Array
from decoding_jax.strategies.speculative.distributions import Softmax


class Block(NamedTuple):
    """K drafted tokens of every lane, as the target's law is about to judge them.

    Attributes:
      tokens: int32 ``[B, W, K]``.
      drafted: int32 ``[B, W]``, from 0 to K: how many were proposed. The rest means nothing.
      law: of ``[B, W, K, V]``, which each token was drawn from, transformed; None where each was
        certain.
      trail: the verifier's memory after each draw, its leaves ``[K, ...]``.
    """

    tokens: Array
    drafted: Array
    law: Softmax | None
    trail: Any

    @property
    def proposed(self) -> Array:
        """bool ``[B, W, K]``."""
        place = jnp.arange(self.tokens.shape[-1], dtype=jnp.int32)[None, None]
        return place < self.drafted[..., None]


class Verdict(NamedTuple):
    """What a verifier makes of a block.

    Attributes:
      tokens: int32 ``[B, W, K + 1]``: the accepted tokens, and one more of the verifier's own.
      accepted: int32 ``[B, W]``: how many were accepted. What follows ``accepted + 1`` tokens
        means nothing.
      memory: the verifier's, as of the last of these tokens.
    """

    tokens: Array
    accepted: Array
    memory: Any


def leading(accept: Array) -> Array:
    """How many of ``accept [..., K]`` hold before the first that does not: int32 ``[...]``.

    Example:
      >>> leading(jnp.array([[True, True, False, True]])).tolist()
      [2]
    """
    return jnp.cumprod(accept.astype(jnp.int32), axis=-1).sum(-1, dtype=jnp.int32)


def with_own(block: Block, accepted: Array, own: Array) -> Array:
    """The drafted tokens with the verifier's ``own [B, W]`` at ``accepted``: ``[B, W, K + 1]``."""
    place = jnp.arange(block.tokens.shape[-1] + 1, dtype=jnp.int32)[None, None]
    tokens = jnp.concatenate([block.tokens, own[..., None]], axis=-1)
    return jnp.where(place == accepted[..., None], own[..., None], tokens)

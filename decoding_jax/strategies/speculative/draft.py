"""The draft: K tokens that a drafter proposes for every lane."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp

from decoding_jax.base import Array
from decoding_jax.strategies.speculative.distributions import Softmax


class Draft(NamedTuple):
    """K drafted tokens of every lane.

    Attributes:
      tokens: int32 ``[B, W, K]``.
      length: int32 ``[B, W]``, from 0 to K, the number of drafted tokens; later entries of
        ``tokens`` are undefined.
      distribution: of ``[B, W, K, V]``, the transformed distribution that each token was drawn
        from; None for a drafter that proposes tokens with certainty.
      states: the verifier's state after each draw, with leaves ``[K, ...]``.
    """

    tokens: Array
    length: Array
    distribution: Softmax | None
    states: Any

    @property
    def valid(self) -> Array:
        """Which of the tokens are part of the draft, bool ``[B, W, K]``."""
        index = jnp.arange(self.tokens.shape[-1], dtype=jnp.int32)[None, None]
        return index < self.length[..., None]


def count_leading(accept: Array) -> Array:
    """Counts the values of ``accept [..., K]`` that are true before the first false one.

    Example:
      >>> count_leading(jnp.array([[True, True, False, True]])).tolist()
      [2]
    """
    return jnp.cumprod(accept.astype(jnp.int32), axis=-1).sum(-1, dtype=jnp.int32)


def with_final_token(draft: Draft, accepted: Array, final: Array) -> Array:
    """The accepted tokens and the final one that the verifier adds: int32 ``[B, W, K + 1]``.

    Args:
      draft: K drafted tokens of every lane.
      accepted: int32 ``[B, W]``.
      final: int32 ``[B, W]``, the token after the accepted ones.
    """
    index = jnp.arange(draft.tokens.shape[-1] + 1, dtype=jnp.int32)[None, None]
    tokens = jnp.concatenate([draft.tokens, final[..., None]], axis=-1)
    return jnp.where(index == accepted[..., None], final[..., None], tokens)

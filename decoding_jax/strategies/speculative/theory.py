"""The speed-up that theory predicts from the acceptance rate and the costs of calls."""

from __future__ import annotations

import jax.numpy as jnp
from jax.typing import ArrayLike

from decoding_jax.base import Array


def emitted_tokens(acceptance: ArrayLike, num_draft_tokens: ArrayLike) -> Array:
    """The expected tokens of a block.

    They are ``1 + a + ... + a^K``: Leviathan et al. 2022, equation 1.

    Args:
      acceptance: a, the probability that a drafted token is accepted if all before it are.
      num_draft_tokens: K.

    Example:
      >>> emitted_tokens(0.5, 2).item(), emitted_tokens(1.0, 3).item()
      (1.75, 4.0)
    """
    a, size = jnp.asarray(acceptance, jnp.float32), jnp.asarray(num_draft_tokens, jnp.float32)
    a_below_1 = jnp.where(a < 1, a, 0.0)  # Avoids a division by 0.
    return jnp.where(a < 1, (1 - a_below_1 ** (size + 1)) / (1 - a_below_1), size + 1)


def speed_up(
    emitted: ArrayLike,
    num_draft_tokens: ArrayLike,
    cost_ratio: ArrayLike,
    block_cost: ArrayLike = 1.0,
) -> Array:
    """The time of plain decoding divided by that of speculation, ``R / (K c + v)``.

    Args:
      emitted: R, the number of tokens for each row and loop iteration. For one row it is
        ``emitted_tokens``; with v = 1, this is the formula of Leviathan et al. 2022, theorem 3.8.
        For a batch, which runs until its last row is done, it is ``Info.tokens_per_iteration``.
      num_draft_tokens: K.
      cost_ratio: c, the time of a drafted token, relative to a token of plain decoding.
      block_cost: v, the time of a call of the target with K + 1 tokens, relative to one token.

    Example:
      >>> round(speed_up(emitted_tokens(0.8, 4), 4, 0.05).item(), 3)
      2.801
    """
    size = jnp.asarray(num_draft_tokens, jnp.float32)
    return jnp.asarray(emitted, jnp.float32) / (size * cost_ratio + block_cost)

"""What speculation should gain, from how often drafts are accepted and what calls cost."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from decoding_jax.base import Array


def emitted_tokens(acceptance: Any, num_draft_tokens: Any) -> Array:
    """The tokens a block emits, ``1 + a + ... + a^K``: Leviathan et al. 2022, equation 1.

    Args:
      acceptance: a, the chance that a drafted token stands, given that those before it do.
      num_draft_tokens: K.

    Example:
      >>> emitted_tokens(0.5, 2).item(), emitted_tokens(1.0, 3).item()
      (1.75, 4.0)
    """
    a, size = jnp.asarray(acceptance, jnp.float32), jnp.asarray(num_draft_tokens, jnp.float32)
    below = jnp.where(a < 1, a, 0.0)
    return jnp.where(a < 1, (1 - below ** (size + 1)) / (1 - below), size + 1)


def speed_up(emitted: Any, num_draft_tokens: Any, cost_ratio: Any, block_cost: Any = 1.0) -> Array:
    """The time of plain decoding over that of speculation, ``R / (K c + v)``.

    Args:
      emitted: R, tokens emitted a row and loop iteration. For one row ``emitted_tokens``, which
        makes it the formula of Leviathan et al. 2022, theorem 3.8, where v = 1; for a batch that
        goes on until its last row is done, ``Info.tokens_per_iteration``.
      num_draft_tokens: K.
      cost_ratio: c, the time of a drafted token over that of a token of plain decoding.
      block_cost: v, the time of a call of the target with K + 1 tokens over that with one.

    Example:
      >>> round(speed_up(emitted_tokens(0.8, 4), 4, 0.05).item(), 3)
      2.801
    """
    size = jnp.asarray(num_draft_tokens, jnp.float32)
    return jnp.asarray(emitted, jnp.float32) / (size * cost_ratio + block_cost)

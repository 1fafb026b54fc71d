"""The sequences decoded so far, and the lengths that a model can hold."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from decoding_jax.base import Array, LanguageModel


class Sequences(NamedTuple):
    """The sequences decoded so far.

    Attributes:
      tokens: int32 ``[B, W, L]``, 0 from ``length`` on.
      length: int32 ``[B, W]``.
      log_prob: float32 ``[B, W]``.
      log_prob_lost: float32 ``[B, W]``, what its rounding has lost (see ``ops.exact.add``).
      finished: bool ``[B, W]``, ended by a stop condition.
      done: bool ``[B, W]``, finished, at its limit, or without an allowed continuation.
    """

    tokens: Array
    length: Array
    log_prob: Array
    log_prob_lost: Array
    finished: Array
    done: Array


def empty_sequences(limit: Array, lanes: int, max_new_tokens: int) -> Sequences:
    """Sequences without tokens; those of rows whose limit (int32 ``[B]``) is 0 are done."""
    shape = (limit.shape[0], lanes)
    return Sequences(
        tokens=jnp.zeros((*shape, max_new_tokens), jnp.int32),
        length=jnp.zeros(shape, jnp.int32),
        log_prob=jnp.zeros(shape, jnp.float32),
        log_prob_lost=jnp.zeros(shape, jnp.float32),
        finished=jnp.zeros(shape, bool),
        done=jnp.broadcast_to(limit[:, None] < 1, shape),
    )


def check_lengths(model: LanguageModel, prompt_size: int, max_new_tokens: int) -> None:
    """Refuses a length that the model's positions cannot hold.

    The last token is never fed back, so P + max_new_tokens - 1 positions are needed.

    Raises:
      ValueError: if they are too many, or ``max_new_tokens`` is below 1.
    """
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens: got {max_new_tokens}; takes 1 or more")
    most = model.max_positions
    if most is not None and prompt_size + max_new_tokens - 1 > most:
        raise ValueError(
            f"max_new_tokens: got {max_new_tokens} after a prompt of {prompt_size}; "
            f"takes at most {most - prompt_size + 1}: the model has {most} positions"
        )

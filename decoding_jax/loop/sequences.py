"""The sequences decoded so far, and the check that a model can hold their length."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from decoding_jax.base import Array, LanguageModel


class Sequences(NamedTuple):
    """The sequences decoded so far.

    Attributes:
      tokens: int32 ``[B, W, L]``, 0 from ``length`` on.
      length: int32 ``[B, W]``, the number of new tokens.
      log_prob: float32 ``[B, W]``, the sum of the tokens' log-probabilities under the model.
      log_prob_lost: float32 ``[B, W]``, the rounding error of that sum (see ``ops.exact.add``).
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
    """Creates sequences without tokens; rows whose ``limit`` (int32 ``[B]``) is 0 are done."""
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
    """Refuses a length that exceeds the model's positions.

    The last token is never fed back, so P + max_new_tokens - 1 positions are needed.

    Raises:
      ValueError: if they are too many, or ``max_new_tokens`` is below 1.
    """
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens: got {max_new_tokens}; takes 1 or more")
    maximum = model.max_positions
    if maximum is not None and prompt_size + max_new_tokens - 1 > maximum:
        raise ValueError(
            f"max_new_tokens: got {max_new_tokens} after a prompt of {prompt_size}; "
            f"takes at most {maximum - prompt_size + 1}: the model has {maximum} positions"
        )

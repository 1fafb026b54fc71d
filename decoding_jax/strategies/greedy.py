"""Greedy decoding: the most probable token at every step."""

from __future__ import annotations

from typing import Any

from decoding_jax.base import Array, Stop, Transform
from decoding_jax.loop import Static, Steps, search
from decoding_jax.ops.logits import lowest_argmax
from decoding_jax.strategies.token_by_token import token_by_token


@search
def greedy(
    *, max_new_tokens: Static[int], transform: Transform | None = None, stop: Stop | None = None
) -> Steps:
    """Appends the most probable token at every step; ties go to the lowest id.

    Args:
      model: the language model.
      prompt: tokens int32 ``[B, P]`` and their length ``[B]``.
      max_new_tokens: L, the maximum number of new tokens.
      transform: applied to the logits before the choice.
      stop: when a sequence ends.

    Returns:
      A ``DecodeOutput`` with N = 1. ``score`` is ``log_prob``. A sequence whose every continuation
      is banned ends unfinished. ``info.model_calls`` includes the prefill.

    Raises:
      ValueError: for a prompt of wrong shapes or a length that the model cannot hold.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from decoding_jax import Prompt
      >>> from decoding_jax.testing import TableLM
      >>> model = TableLM.random(jax.random.key(0), 5)
      >>> prompt = Prompt(jnp.array([[1, 2]]), jnp.array([2]))
      >>> greedy(model, prompt, max_new_tokens=4).tokens.shape
      (1, 1, 4)
    """

    def choose(no_state: Any, logits: Array, step: Array) -> tuple[Array, Any]:
        return lowest_argmax(logits), no_state

    return token_by_token(
        choose,
        lambda key, batch_size: None,
        lanes=1,
        max_new_tokens=max_new_tokens,
        transform=transform,
        stop=stop,
    )

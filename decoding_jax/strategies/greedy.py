"""Greedy decoding: the most probable token at every step."""

from __future__ import annotations

import dataclasses
from typing import Any

from decoding_jax.base import Array
from decoding_jax.loop import as_function
from decoding_jax.ops.logits import lowest_argmax
from decoding_jax.pytrees import pytree
from decoding_jax.strategies.token_by_token import TokenByToken


@pytree
@dataclasses.dataclass(frozen=True, kw_only=True)
class Greedy(TokenByToken):
    """Appends the most probable token at every step; ties go to the lowest id.

    The output has one sequence a row, and its ``score`` is ``log_prob``. A sequence whose every
    continuation is banned ends unfinished. ``info.model_calls`` includes the prefill.

    Attributes:
      max_new_tokens: L, the maximum number of new tokens.
      transform: applied to the logits before the choice.
      stop: when a sequence ends.

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

    def choose(self, chooser: Any, logits: Array, step: Array) -> tuple[Array, Any]:
        return lowest_argmax(logits), chooser


greedy = as_function(Greedy)

"""The driver of every strategy: ``init``, then ``step`` in a ``while_loop`` until ``done``."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from decoding_jax.base import Array, DecodeOutput, LanguageModel, Prompt
from decoding_jax.loop.values import check_prompt_type
from decoding_jax.ops.mesh import over_rows


def check_prompt(prompt: Prompt) -> Prompt:
    """Checks the shapes of a prompt, and returns it with int32 arrays.

    Raises:
      ValueError: if its shapes are not ``[B, P]`` and ``[B]`` with P of at least 1.
    """
    tokens, length = check_prompt_type(prompt)
    tokens, length = jnp.asarray(tokens), jnp.asarray(length)
    if tokens.ndim != 2 or tokens.shape[1] == 0 or length.shape != tokens.shape[:1]:
        raise ValueError(
            f"prompt: got tokens {list(tokens.shape)} and length {list(length.shape)}; "
            "takes [B, P] with P of 1 or more, and [B]"
        )
    return Prompt(tokens.astype(jnp.int32), length.astype(jnp.int32))


def run(
    strategy: Any, model: LanguageModel, prompt: Prompt, key: Array | None = None
) -> DecodeOutput:
    """Runs a strategy to its end.

    Args:
      strategy: a ``Strategy``, or ``Steps``.
      model: the model.
      prompt: B prompts.
      key: a typed key, typed keys ``[B]``, or None for a strategy that draws nothing.

    Raises:
      ValueError: for a prompt of wrong shapes, and as ``strategy.init``.
    """
    prompt = check_prompt(prompt)
    state = lax.while_loop(
        lambda s: ~strategy.done(s),
        lambda s: strategy.step(model, prompt, s),
        strategy.init(model, jax.tree.map(over_rows, prompt), key),
    )
    return strategy.finalize(prompt, state)

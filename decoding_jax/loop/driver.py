"""The driver of every strategy: ``init``, then ``step`` in a ``while_loop`` until ``done``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from decoding_jax.base import Array, DecodeOutput, LanguageModel, Prompt
from decoding_jax.loop.values import check_prompt_type
from decoding_jax.ops.mesh import over_rows


class Steps(NamedTuple):
    """The parts of a strategy, which ``run`` runs to the end and ``stream`` a few at a time.

    Attributes:
      init: ``(model, prompt, key) -> state``: prefills, and chooses tokens from the logits.
      step: ``(model, prompt, state) -> state``: calls the model once.
      done: ``state -> bool``: whether all rows are done.
      finalize: ``(prompt, state) -> DecodeOutput``: the result; for an unfinished state, the
        sequences decoded so far.
      row_done: ``state -> bool [B]``, whether each row is done; None for a strategy whose rows
        cannot be exchanged one by one. With it, a strategy declares that every array of its state
        begins with the axis of rows, except scalars; that ``step`` and ``finalize`` also take a
        state whose scalars have one value for each row, ``[B]``; that no row depends on another;
        and that a row that is done no longer changes. ``loop.refill`` relies on this.
      settled: ``state -> int32 [B, N]``, the number of leading tokens of each sequence of
        ``finalize`` that no later step changes; None for a strategy whose tokens may change until
        their row is done. Streams give out the text of settled tokens only.
      widens: whether the width that prompts (or encoder inputs) are padded to affects a state only
        through padding: zero-padded or cut at the end of each axis, the arrays of a row's state
        become those of the same row at another width that holds it. ``loop.refill`` relies on this
        to move rows to a batch of another width, if the model has ``widens`` too.
    """

    init: Callable[[LanguageModel, Prompt, Any], Any]
    step: Callable[[LanguageModel, Prompt, Any], Any]
    done: Callable[[Any], Array]
    finalize: Callable[[Prompt, Any], DecodeOutput]
    row_done: Callable[[Any], Array] | None = None
    settled: Callable[[Any], Array] | None = None
    widens: bool = False


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
    steps: Steps, model: LanguageModel, prompt: Prompt, key: Array | None = None
) -> DecodeOutput:
    """Runs a strategy to its end.

    Args:
      steps: the strategy's parts.
      model: the model.
      prompt: B prompts.
      key: a typed key, typed keys ``[B]``, or None for a strategy that draws nothing.

    Raises:
      ValueError: for a prompt of wrong shapes, and as ``steps.init``.
    """
    prompt = check_prompt(prompt)
    state = lax.while_loop(
        lambda s: ~steps.done(s),
        lambda s: steps.step(model, prompt, s),
        steps.init(model, jax.tree.map(over_rows, prompt), key),
    )
    return steps.finalize(prompt, state)


__all__ = ["Steps", "check_prompt", "run"]

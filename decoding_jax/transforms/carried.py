"""The states of transforms, carried from step to step in place of reading whole texts again.

A strategy keeps them in its own state, moves them where it moves lanes, and lets them advance by
the tokens that are new. Where a state has None in their place, transforms read whole texts.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp

from decoding_jax.base import CarriedStates, Prefix, Prompt


def states_after(transforms: Any, prefix: Prefix) -> Any:
    """The states of transforms after each path.

    Args:
      transforms: a transform, None, or a tuple of these.
      prefix: the paths. Its states are those of ``transforms``.

    Returns:
      A pytree of arrays ``[B, W, T]``, for a tuple a tuple; None where there are none.
    """
    if isinstance(transforms, tuple):
        states = tuple(states_after(x, prefix.part(i)) for i, x in enumerate(transforms))
        return None if all(x is None for x in states) else states
    method = getattr(transforms, "states_after", None)
    return None if method is None else method(prefix)


def begin(transforms: Any, prompt: Prompt, lanes: int) -> CarriedStates | None:
    """The states before the first token, arrays ``[B, W, 1]``; None for transforms without states.

    Args:
      transforms: a transform, None, or a tuple of these.
      prompt: B prompts.
      lanes: W.
    """
    length = jnp.zeros((prompt.tokens.shape[0], lanes, 1), jnp.int32)
    no_tokens = jnp.zeros((*length.shape, 0), jnp.int32)
    states = states_after(transforms, Prefix(*prompt, no_tokens, length))
    return None if states is None else CarriedStates(states, length)


def advance(
    transforms: Any, path: Prefix, states: CarriedStates | None, *, rest: int = 1
) -> Prefix:
    """Paths with the transforms' states after all their tokens.

    Args:
      transforms: as for ``begin``.
      path: the paths.
      states: the states after earlier tokens of these paths; None changes nothing.
      rest: the maximum number of tokens since.
    """
    if states is None:
        return path
    before = path._replace(carried=dataclasses.replace(states, rest=rest))
    return path._replace(carried=CarriedStates(states_after(transforms, before), path.length))

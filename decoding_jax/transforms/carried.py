"""The states of transforms, carried from step to step in place of reading whole texts again.

A strategy keeps them in its own state, moves them where it moves lanes, and lets them advance by
the tokens that are new. Where a state has None in their place, transforms read whole texts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from decoding_jax.base import Array, CarriedStates, Prefix, Prompt
from decoding_jax.ops.gather import gather_last


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


def walked(
    prefix: Prefix,
    begin: Callable[[], Any],
    advance: Callable[[Any, Array], Any],
    *,
    longest: Any = None,
) -> Any:
    """The states after each path of a transform that reads one token after another.

    Args:
      prefix: the paths. Where it has states, only the tokens after them are read.
      begin: returns the states before the first new token, arrays ``[B, 1, 1]`` or ``[1, 1, 1]``.
      advance: ``(states, token) -> states``, after one more token.
      longest: None, or int32: a number of tokens after which further ones need not be read.

    Returns:
      A pytree of arrays ``[B, W, T]``.
    """
    shape = prefix.length.shape

    def advanced(states: Any, token: Array, real: Array) -> Any:
        return jax.tree.map(lambda x, y: jnp.where(real, x, y), advance(states, token), states)

    if prefix.carried is not None:
        rest, last = prefix.carried.rest, prefix.tokens.shape[-1] - 1
        first = jnp.broadcast_to(prefix.carried.length, shape)

        def go_on(i: Array | int, states: Any) -> Any:
            token = gather_last(prefix.tokens, jnp.minimum(first + i, last))
            return advanced(states, token, first + i < prefix.length)

        states = jax.tree.map(lambda x: jnp.broadcast_to(x, shape), prefix.carried.states)
        if rest <= 1:
            return go_on(0, states) if rest else states
        # The number of rounds is a constant, which the host of a GPU need not wait for.
        return lax.fori_loop(0, rest, go_on, states)

    def read(i: Array, states: Any) -> Any:
        token = lax.dynamic_index_in_dim(prefix.tokens, i, axis=3, keepdims=False)
        return advanced(states, token, i < prefix.length)

    states = jax.tree.map(lambda x: jnp.broadcast_to(x, shape), begin())
    size = prefix.tokens.shape[-1]
    if not size:
        return states
    steps = jnp.minimum(prefix.length.max(initial=0), size)
    if longest is not None:
        steps = jnp.minimum(steps, jnp.asarray(longest, jnp.int32))
    return lax.fori_loop(0, steps, read, states)
